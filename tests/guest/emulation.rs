//! An image for another architecture, by itself: refused, until the kernel has an emulator for its programs (Debian's
//! `qemu-aarch64-static`, by `binfmt_misc`); then it runs, with a warning.

use std::fs;
use std::path::Path;

use switchyard_tests::cri::image_spec;
use switchyard_tests::host::eventually;
use switchyard_tests::image::{Image, ImageBuilder, LayerBuilder};
use tonic::Status;

use crate::node::{GuestFact, GuestNode, LIMIT, run, try_run};

pub(crate) const FACTS: &[GuestFact] = &[(
    "image_for_another_architecture_runs_while_the_kernel_has_its_emulator",
    foreign_image_runs_by_its_emulator,
)];

/// Directory in which the kernel has its handlers.
const HANDLERS: &str = "/proc/sys/fs/binfmt_misc";
/// The name of the handler.
const NAME: &str = "qemu-aarch64";
/// Handler that is registered under that name: the beginning of ELF files for arm64, the mask of it, and their interpreter. By the flag F
/// the kernel opens the interpreter now, so that an image need not have it.
const HANDLER: &str = concat!(
    r":qemu-aarch64:M:",
    r":\x7f\x45\x4c\x46\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00",
    r":\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff",
    r":/usr/bin/qemu-aarch64-static:OCF"
);
/// The platform of the image, as the daemon names it.
const PLATFORM: &str = "linux/arm64";
/// Warning of the daemon about it.
const WARNING: &str = "an image is for another platform, for which the kernel has an emulator";

/// A program for arm64 that prints the machine that `uname` tells: `machine` is the fifth field of `struct utsname`, of 65 bytes each, and
/// has the seven letters of `aarch64` there.
const INSTRUCTIONS: [u32; 14] = [
    0xd108_03ff, // sub  sp, sp, #512
    0x9100_03e0, // mov  x0, sp
    0xd280_1408, // mov  x8, #160       uname
    0xd400_0001, // svc  #0
    0x5280_0143, // mov  w3, #'\n'
    0x3904_2fe3, // strb w3, [sp, #267] the end of the text at 260
    0xd280_0020, // mov  x0, #1         standard output
    0x9104_13e1, // add  x1, sp, #260
    0xd280_0102, // mov  x2, #8
    0xd280_0808, // mov  x8, #64        write
    0xd400_0001, // svc  #0
    0xd280_0000, // mov  x0, #0
    0xd280_0ba8, // mov  x8, #93        exit
    0xd400_0001, // svc  #0
];

/// An executable of these instructions, without sections and with one segment, which is the whole file.
fn program() -> Vec<u8> {
    /// The sizes of the header of the file and of that of a segment, after which the instructions begin.
    const HEADER: u16 = 64;
    const SEGMENT: u16 = 56;
    /// Address of the segment in memory.
    const ADDRESS: u64 = 0x40_0000;
    let begin = u64::from(HEADER + SEGMENT);
    let code: Vec<u8> = INSTRUCTIONS
        .into_iter()
        .flat_map(u32::to_le_bytes)
        .collect();
    let size = (begin + code.len() as u64).to_le_bytes();
    [
        // 64 bits, the lowest byte first, version 1.
        b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0".as_slice(),
        // An executable, for arm64, version 1.
        &2u16.to_le_bytes(),
        &183u16.to_le_bytes(),
        &1u32.to_le_bytes(),
        // Where it begins, where the header of the segment is, and that of sections, of which it has none.
        &(ADDRESS + begin).to_le_bytes(),
        &u64::from(HEADER).to_le_bytes(),
        &0u64.to_le_bytes(),
        // No flags; the sizes of the headers, and their numbers.
        &0u32.to_le_bytes(),
        &HEADER.to_le_bytes(),
        &SEGMENT.to_le_bytes(),
        &1u16.to_le_bytes(),
        &[0u8; 6],
        // A segment that is loaded, to be read and executed.
        &1u32.to_le_bytes(),
        &5u32.to_le_bytes(),
        // From the beginning of the file, to its address; its size in both; aligned to the largest page of arm64.
        &0u64.to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &ADDRESS.to_le_bytes(),
        &size,
        &size,
        &0x1_0000u64.to_le_bytes(),
        code.as_slice(),
    ]
    .concat()
}

/// An image of that program alone.
fn image() -> Image {
    let layer = LayerBuilder::default().file("machine", program(), 0o755);
    ImageBuilder::new()
        .architecture("arm64")
        .layer(layer.build())
        .entrypoint(&["/machine"])
        .build()
}

/// A registered handler. Dropping it removes it.
struct Handler;

impl Handler {
    fn register() -> Self {
        fs::write(Path::new(HANDLERS).join("register"), HANDLER).expect("the kernel takes it");
        Self
    }
}

impl Drop for Handler {
    fn drop(&mut self) {
        // Also after a failure, of which this must hide nothing.
        if let Err(error) = fs::write(Path::new(HANDLERS).join(NAME), "-1") {
            println!("{NAME} stays registered: {error}");
        }
    }
}

/// The file system that shows the handlers. Dropping this unmounts it, unless systemd had it mounted.
struct Handlers {
    is_own: bool,
}

impl Handlers {
    /// Mounts it, which loads its module, if nobody does at the first look.
    fn mount() -> Self {
        let handlers = Self {
            is_own: !Path::new(HANDLERS).join("register").exists(),
        };
        if handlers.is_own {
            run(&["mount", "-t", "binfmt_misc", "binfmt_misc", HANDLERS]);
        }
        assert!(
            !Path::new(HANDLERS).join(NAME).exists(),
            "the image has handlers of its own"
        );
        handlers
    }
}

impl Drop for Handlers {
    fn drop(&mut self) {
        if self.is_own {
            try_run(&["umount", HANDLERS]);
        }
    }
}

#[track_caller]
fn assert_refused(pulled: Result<String, Status>) {
    let refused = pulled.expect_err("nothing runs it here");
    let text = refused.message();
    assert!(
        text.contains(&format!("the image is for the platform {PLATFORM}"))
            && text.contains("no emulator for the other one (binfmt_misc)"),
        "{refused}"
    );
}

fn foreign_image_runs_by_its_emulator(node: &GuestNode) {
    let _handlers = Handlers::mount();
    node.registry.push("library/machine:arm64", &image());
    let reference = node.registry.reference("library/machine:arm64");
    assert_refused(node.cri.pull(&reference, None));
    {
        let _handler = Handler::register();
        let pulled = node.cri.pull(&reference, None);
        pulled.unwrap_or_else(|status| panic!("with an emulator: {status}"));
        let is_told = || {
            let unit = ["--unit", "switchyard", "--priority", "warning"];
            let journal = [&["journalctl", "--boot", "--output", "cat"][..], &unit].concat();
            let log = run(&journal);
            let mut warnings = log.lines().filter(|line| line.contains(WARNING));
            warnings.any(|line| {
                [reference.as_str(), PLATFORM, NAME]
                    .iter()
                    .all(|word| line.contains(word))
            })
        };
        assert!(eventually(LIMIT, is_told), "the log has no warning");
        let pod = node.pod("emulation");
        let id = pod.start_shell_with("machine", "", |config| {
            config.image = Some(image_spec(&reference));
            // As the image says.
            config.command = Vec::new();
        });
        let ended = node.wait_exit(&id);
        assert_eq!(
            ended.exit_code,
            0,
            "{ended:?}: {:?}",
            pod.log_lines("machine")
        );
        let printed = pod.wait_log_lines("machine", |lines| !lines.is_empty());
        assert_eq!(printed, ["aarch64"]);
    }
    node.cri
        .remove_image(&reference)
        .expect("nothing uses it any more");
    assert_refused(node.cri.pull(&reference, None));
}
