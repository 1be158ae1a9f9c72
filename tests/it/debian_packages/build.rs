//! The build of the package from a binary that this machine cannot run.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::Value;
use switchyard_tests::daemon::binary;
use switchyard_tests::prereq;
use switchyard_tests::scratch::Scratch;
use switchyard_tests::stub_programs::StubPrograms;

use super::{read, repository};

/// Writes down its call.
const CALL: &str = "echo \"${0##*/} $*\" >>\"$STUBS/calls\"\n";

/// The packages' and the other architecture's programs, and cargo.
fn stubs(dir: PathBuf) -> StubPrograms {
    let dpkg_deb = format!("{CALL}cp -r \"$3\" \"$STUBS/tree\"; : >\"$4\"\n");
    let cargo = format!(
        "{CALL}case $1 in tree) echo 'switchyard v0.1.0 (/x)' ;; metadata) echo '{{\"packages\": []}}' ;; esac\n"
    );
    let libraries = "echo \"libraries of $DEB_HOST_ARCH\" >>\"$STUBS/calls\"; echo 'shlibs:Depends=libc6 (>= 2.36)'\n";
    StubPrograms::new(
        dir,
        &[
            ("dpkg", "echo amd64\n"),
            ("dpkg-deb", &dpkg_deb),
            ("dpkg-shlibdeps", libraries),
            ("aarch64-linux-gnu-strip", CALL),
            ("aarch64-linux-gnu-objcopy", CALL),
            ("cargo", &cargo),
        ],
    )
}

/// A file that is a program for arm64 by its header, and contains this text.
fn program_for_arm64(file: PathBuf, text: &str) -> PathBuf {
    let mut header = [0; 64];
    // ELF of 64 bits, little-endian: a shared object (3) for AArch64 (183), and the sizes of the header's parts.
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    for (place, value) in [(16, 3), (18, 183), (20, 1), (52, 64), (54, 56), (58, 64)] {
        header[place] = value;
    }
    fs::write(&file, [&header[..], text.as_bytes()].concat())
        .expect("the directory can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    file
}

/// Packs a program for another architecture with the help of the tests' own.
fn pack(stubs: &StubPrograms, program: &Path) -> Output {
    stubs
        .command(&repository().join("deploy/debian/build"))
        .arg("--host-program")
        .arg(binary())
        .arg(program)
        .arg(stubs.dir())
        .env("SOURCE_DATE_EPOCH", "1")
        .output()
        .expect("the script is in the repository")
}

#[test]
fn binary_of_another_architecture_is_packed_by_a_program_of_the_same_commit() {
    let _ = prereq::require("jq", "jq");
    let _ = prereq::require("readelf", "binutils");
    let reported = Command::new(binary())
        .args(["version", "--output", "json"])
        .output()
        .expect("the binary exists");
    let reported: Value = serde_json::from_slice(&reported.stdout).expect("it is JSON");
    let [version, revision] =
        ["version", "revision"].map(|field| reported[field].as_str().expect("it is reported"));
    let scratch = Scratch::new();
    let stubs = stubs(scratch.path().join("stubs"));

    let identity = format!("{version} {revision}");
    let program = program_for_arm64(scratch.path().join("same"), &identity);
    let packed = pack(&stubs, &program);
    assert!(packed.status.success(), "{packed:?}");
    let package = format!("switchyard_{}-1_arm64.deb", version.replace('-', "~"));
    let package = stubs.dir().join(package);
    assert_eq!(
        String::from_utf8_lossy(&packed.stdout).trim_end(),
        package.display().to_string()
    );
    let tree = stubs.dir().join("tree");
    let control = read(&tree.join("DEBIAN/control"));
    assert!(control.contains("\nArchitecture: arm64\n"), "{control}");
    assert!(tree.join("usr/share/man/man1/switchyard.1.gz").exists());
    let calls = stubs.calls();
    for call in [
        "aarch64-linux-gnu-strip --strip-unneeded ",
        "cargo tree --locked -p switchyard --target aarch64-unknown-linux-gnu ",
        "cargo metadata --locked --format-version 1 --filter-platform aarch64-unknown-linux-gnu",
        "libraries of arm64",
    ] {
        assert!(
            calls.iter().any(|line| line.starts_with(call)),
            "{call}: {calls:#?}"
        );
    }

    let other = program_for_arm64(scratch.path().join("other"), version);
    let refused = pack(&stubs, &other);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("is of another commit"),
        "{why}"
    );
}
