//! Check that an image can run on this node, by the platform that its configuration names.

use std::fs;
use std::path::Path;

use switchyard_core::{Error, Result};
use switchyard_registry::{Platform, Platforms};

use crate::base::fs::blocking;

/// The programs that the kernel starts for executables of other architectures, such as QEMU.
const HANDLERS: &str = "/proc/sys/fs/binfmt_misc";
/// The most entries of that directory that are read.
const MAX_HANDLERS: usize = 256;

/// Relation of the platform of a configuration to this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fit {
    /// It is one of this node's, or is not named.
    Own,
    /// It is not, but an index has promised one of this node's.
    Promised,
    /// It is not.
    Foreign,
}

/// Refuses an image for another platform, unless an index has promised this node's for it (`promised`), as containerd
/// believes the index; or the kernel has an emulator for it, as an image without an index is all that there is. Both are
/// logged.
///
/// # Errors
/// `NotFound`.
pub(super) async fn check_platform(
    image: &str,
    config: &Platform,
    promised: Option<&Platform>,
) -> Result<()> {
    let wanted = Platforms::of_this_machine();
    match fit(&wanted, config, promised) {
        Fit::Own => return Ok(()),
        Fit::Promised => {
            tracing::warn!(
                image,
                what = %config,
                "the configuration of an image names another platform than its index: it is used as the index says"
            );
            return Ok(());
        }
        Fit::Foreign => {}
    }
    let platform = config.clone();
    let found = blocking(move || Ok(emulator(Path::new(HANDLERS), &platform))).await?;
    if let Some(handler) = found {
        tracing::warn!(
            image,
            what = %config,
            program = handler,
            "an image is for another platform, for which the kernel has an emulator"
        );
        return Ok(());
    }
    Err(Error::not_found(format!(
        "the image is for the platform {config}; this node runs {wanted}, and has no emulator for the other one (binfmt_misc)"
    )))
}

fn fit(wanted: &Platforms, config: &Platform, promised: Option<&Platform>) -> Fit {
    if wanted.accept(config) {
        Fit::Own
    } else if promised.is_some_and(|promised| wanted.rank(promised).is_some()) {
        Fit::Promised
    } else {
        Fit::Foreign
    }
}

/// The name of an emulator for executables of this platform, of those in a directory of `binfmt_misc`.
fn emulator(handlers: &Path, platform: &Platform) -> Option<String> {
    let platform = platform.normalized();
    let header = elf_header(&platform.architecture).filter(|_| platform.os == "linux")?;
    let is_off = |text: String| text.trim() == "disabled";
    if fs::read_to_string(handlers.join("status")).is_ok_and(is_off) {
        return None;
    }
    let entries = fs::read_dir(handlers).ok()?.take(MAX_HANDLERS);
    let is_found = |name: &String| {
        let text = fs::read_to_string(handlers.join(name));
        text.is_ok_and(|text| serves(&text, &header))
    };
    entries
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
        .find(is_found)
}

/// The beginning of executables for an architecture by Go's name: ELF's magic, its class, byte order and version, then a
/// type (an executable) and a machine.
fn elf_header(architecture: &str) -> Option<[u8; 20]> {
    /// Values in the header of ELF: the class of 32 or of 64 bits, and the order of bytes.
    const WIDE: u8 = 2;
    const NARROW: u8 = 1;
    const LITTLE: u8 = 1;
    const BIG: u8 = 2;
    let (class, order, machine): (u8, u8, u16) = match architecture {
        "386" => (NARROW, LITTLE, 3),
        "amd64" => (WIDE, LITTLE, 62),
        "arm" => (NARROW, LITTLE, 40),
        "arm64" => (WIDE, LITTLE, 183),
        "loong64" => (WIDE, LITTLE, 258),
        "mips" => (NARROW, BIG, 8),
        "mips64" => (WIDE, BIG, 8),
        "mips64le" => (WIDE, LITTLE, 8),
        "mipsle" => (NARROW, LITTLE, 8),
        "ppc64" => (WIDE, BIG, 21),
        "ppc64le" => (WIDE, LITTLE, 21),
        "riscv64" => (WIDE, LITTLE, 243),
        "s390x" => (WIDE, BIG, 22),
        _ => return None,
    };
    let bytes = |value: u16| {
        if order == LITTLE {
            value.to_le_bytes()
        } else {
            value.to_be_bytes()
        }
    };
    let mut header = [0; 20];
    header[..7].copy_from_slice(&[0x7f, b'E', b'L', b'F', class, order, 1]);
    header[16..18].copy_from_slice(&bytes(2));
    header[18..].copy_from_slice(&bytes(machine));
    Some(header)
}

/// Returns whether a handler, of which the kernel shows this text, is for executables that begin so.
fn serves(text: &str, header: &[u8]) -> bool {
    let value = |name: &str| {
        let mut lines = text.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(' '))
    };
    // One without magic is for the endings of names.
    let Some(magic) = value("magic").and_then(|magic| hex::decode(magic.trim()).ok()) else {
        return false;
    };
    let mask = match value("mask").map(|mask| hex::decode(mask.trim())) {
        None => vec![0xff; magic.len()],
        Some(mask) => mask.unwrap_or_default(),
    };
    let offset = value("offset").map_or(Some(0), |offset| offset.trim().parse::<usize>().ok());
    let compared = offset.and_then(|offset| header.get(offset..)?.get(..magic.len()));
    let is_enabled = text.lines().next() == Some("enabled");
    is_enabled
        && !magic.is_empty()
        && mask.len() == magic.len()
        && compared.is_some_and(|compared| {
            let mut bytes = compared.iter().zip(&magic).zip(&mask);
            bytes.all(|((byte, magic), mask)| byte & mask == magic & mask)
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As Debian's qemu-user-static registers them.
    const ARM64: &str = "enabled\ninterpreter /usr/libexec/qemu-binfmt/aarch64-binfmt-P\nflags: POCF\noffset 0\nmagic 7f454c460201010000000000000000000200b700\nmask ffffffffffffff00fffffffffffffffffeffffff\n";
    const S390X: &str = "enabled\ninterpreter /usr/libexec/qemu-binfmt/s390x-binfmt-P\nflags: POCF\noffset 0\nmagic 7f454c4602020100000000000000000000020016\nmask ffffffffffffff00fffffffffffffffffffeffff\n";

    #[test]
    fn index_is_believed_and_a_configuration_alone_is_compared() {
        let wanted = Platforms::only(&Platform::linux("amd64", None));
        let amd64 = Platform::linux("amd64", None);
        let arm64 = Platform::linux("arm64", Some("v8"));
        let windows = Platform {
            os: "windows".to_owned(),
            ..amd64.clone()
        };
        let unsaid = Platform::linux("", None);
        for (config, promised, expected) in [
            (&amd64, None, Fit::Own),
            (&amd64, Some(&amd64), Fit::Own),
            (&arm64, Some(&amd64), Fit::Promised),
            (&windows, Some(&amd64), Fit::Promised),
            (&arm64, None, Fit::Foreign),
            (&arm64, Some(&arm64), Fit::Foreign),
            (&windows, None, Fit::Foreign),
            (&unsaid, None, Fit::Own),
        ] {
            let found = fit(&wanted, config, promised);
            assert_eq!(found, expected, "{config} with {promised:?}");
        }
    }

    #[test]
    fn emulator_is_found_by_what_the_kernel_compares() {
        // The handlers, a platform, and the one that serves it.
        let off = ARM64.replace("enabled", "disabled");
        let unmasked =
            "enabled\ninterpreter /x\nflags: \noffset 0\nmagic 7f454c46020101000000000000000000\n";
        let later = "enabled\ninterpreter /x\nflags: \noffset 18\nmagic f300\n";
        let by_name = "enabled\ninterpreter /usr/bin/wine\nflags: \nextension .exe\n";
        type Case<'a> = (&'a [(&'a str, &'a str)], &'a str, Option<&'a str>);
        let cases: [Case<'_>; 16] = [
            (
                &[("qemu-aarch64", ARM64), ("qemu-s390x", S390X)],
                "arm64",
                Some("qemu-aarch64"),
            ),
            (
                &[("qemu-aarch64", ARM64), ("qemu-s390x", S390X)],
                "s390x",
                Some("qemu-s390x"),
            ),
            (
                &[("qemu-aarch64", ARM64), ("qemu-s390x", S390X)],
                "riscv64",
                None,
            ),
            (&[("a", unmasked)], "riscv64", Some("a")),
            (&[("a", unmasked)], "arm", None),
            (&[("a", later)], "riscv64", Some("a")),
            (&[("a", later)], "arm64", None),
            (&[("qemu-aarch64", off.as_str())], "arm64", None),
            (
                &[("status", "disabled\n"), ("qemu-aarch64", ARM64)],
                "arm64",
                None,
            ),
            (
                &[
                    ("status", "enabled\n"),
                    ("register", ""),
                    ("qemu-aarch64", ARM64),
                ],
                "arm64",
                Some("qemu-aarch64"),
            ),
            (&[("wine", by_name)], "arm64", None),
            (
                &[("a", "enabled\noffset 18\nmagic b700b700\n")],
                "arm64",
                None,
            ),
            (&[("a", "enabled\nmagic zz\n")], "arm64", None),
            (&[("a", "enabled\nmagic \n")], "arm64", None),
            (&[("qemu-aarch64", ARM64)], "unknown", None),
            (&[], "arm64", None),
        ];
        for (handlers, architecture, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            for (name, text) in handlers {
                fs::write(dir.path().join(name), text).unwrap();
            }
            let found = emulator(dir.path(), &Platform::linux(architecture, None));
            assert_eq!(found.as_deref(), expected, "{architecture}: {handlers:?}");
        }
        let windows = Platform {
            os: "windows".to_owned(),
            ..Platform::linux("arm64", None)
        };
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("qemu-aarch64"), ARM64).unwrap();
        assert_eq!(emulator(dir.path(), &windows), None);
        let absent = dir.path().join("absent");
        assert_eq!(emulator(&absent, &Platform::linux("arm64", None)), None);
    }
}
