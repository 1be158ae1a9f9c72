//! An upgrade of the package that is interrupted: by a disk that fills, by the end of dpkg, and by a power cut. `load.rs` begins one
//! for the power cut, and `after_boot.rs` completes it.

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::Duration;

use switchyard_tests::host::eventually;

use crate::node::{GuestFact, GuestNode, LIMIT, property, run};
use crate::packages::{BEFORE, Counting, NOW, dpkg, dpkg_succeeds, helpers, text};
use crate::units::doctor_errors;

pub(crate) const FACTS: &[GuestFact] = &[(
    "interrupted_upgrade_changes_no_process_and_is_completed_by_dpkg",
    interrupted_upgrade,
)];

const PROGRAM: &str = "/usr/bin/switchyard";
/// The script that postinst asks before it starts anything.
const POLICY: &str = "/usr/sbin/policy-rc.d";
/// The script of the installed version that dpkg calls when the files of the next one are in place.
const POSTRM: &str = "/var/lib/dpkg/info/switchyard.postrm";

/// A script that holds up an upgrade.
const HOLD: &str = "#!/bin/sh\necho $$ >/run/guest-held.new\nmv /run/guest-held.new /run/guest-held\nexec sleep 10000\n";
/// The file with the process of that script.
const HELD: &str = "/run/guest-held";

/// A script that has the disk filled, and permits everything.
const FILL: &str =
    "#!/bin/sh\n: >/run/guest-fill\nwhile [ ! -e /run/guest-filled ]; do sleep 0.1; done\n";
const ASKED: &str = "/run/guest-fill";
const FILLED: &str = "/run/guest-filled";
/// The files that take the space.
const FULL: &str = "/var/lib/guest-full";
const REST: &str = "/var/lib/guest-rest";
/// Bytes that ext4 counts as free and gives to nobody.
const RESERVED: u64 = 16 << 20;

/// An upgrade that does not end, because a script that dpkg calls waits.
pub(crate) struct HeldUpgrade {
    dpkg: Child,
}

// === impl HeldUpgrade ===

impl HeldUpgrade {
    /// Begins an upgrade to the package that is not installed, and waits until its postinst is about to restart the daemon.
    #[track_caller]
    pub(crate) fn in_postinst() -> Self {
        write_policy(HOLD);
        let package = if state().ends_with("-0") { NOW } else { BEFORE };
        Self::begin(package)
    }

    #[track_caller]
    fn begin(package: &str) -> Self {
        let mut command = Command::new("dpkg");
        command
            .args(["--install", package])
            .env("DEBIAN_FRONTEND", "noninteractive")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let held = Self {
            dpkg: command.spawn().expect("it can be run"),
        };
        let is_held = || Path::new(HELD).exists();
        assert!(eventually(LIMIT, is_held), "dpkg calls no script");
        held
    }

    /// Ends dpkg, which cleans nothing up, and the script.
    fn kill(mut self) {
        self.dpkg.kill().expect("it waits");
        let _ = self.dpkg.wait();
        let script = fs::read_to_string(HELD).expect("it was written");
        run(&["kill", "-KILL", script.trim()]);
        fs::remove_file(HELD).expect("it was written");
    }
}

fn write_policy(script: &str) {
    fs::write(POLICY, script).expect("root may");
    run(&["chmod", "0755", POLICY]);
}

/// The state of the package for dpkg, and its version.
pub(crate) fn state() -> String {
    let format = "--showformat=${db:Status-Status} ${Version}";
    run(&["dpkg-query", "--show", format, "switchyard"])
}

fn is_to_be_reinstalled() -> bool {
    let format = "--showformat=${db:Status-Eflag}";
    run(&["dpkg-query", "--show", format, "switchyard"]).trim() == "reinstreq"
}

/// Completes the upgrade that a power cut has interrupted, as dpkg and docs/packages.md demand it; what is wrong.
pub(crate) fn complete_after_boot() -> Vec<String> {
    // It holds up no second one.
    let _ = fs::remove_file(POLICY);
    // Power may also have been cut before that, while dpkg replaced the files: then it demands another installation.
    let is_broken = is_to_be_reinstalled();
    let output = if is_broken {
        dpkg(&["--install", NOW])
    } else {
        dpkg(&["--configure", "-a"])
    };
    let mut wrong = Vec::new();
    if !output.status.success() {
        wrong.push(format!("the upgrade is not completed: {}", text(&output)));
    }
    let left = (state(), text(&dpkg(&["--audit"])));
    if !left.0.starts_with("installed ") || !left.1.is_empty() {
        wrong.push(format!("the package is not whole: {left:?}"));
    }
    wrong
}

/// Errors of `switchyard doctor` that stay.
pub(crate) fn lasting_errors() -> Vec<String> {
    let mut errors = Vec::new();
    let _ = eventually(LIMIT, || {
        errors = doctor_errors();
        errors.is_empty()
    });
    let shown = |(kind, seen): &(String, String)| format!("the doctor finds {kind}: {seen}");
    errors.iter().map(shown).collect()
}

/// A container that runs throughout, and the processes that serve it.
struct Throughout<'n> {
    node: &'n GuestNode,
    counting: Counting<'n>,
    process: String,
    helpers: [String; 2],
}

// === impl Throughout ===

impl<'n> Throughout<'n> {
    fn start(node: &'n GuestNode) -> Self {
        let counting = Counting::start(node, "interrupted");
        let process = counting.process();
        Self {
            node,
            counting,
            process,
            helpers: helpers(),
        }
    }

    /// Fails unless it continues, and its output is written. A full disk takes lines, so they are not compared.
    #[track_caller]
    fn assert_continues(&self, when: &str) {
        self.assert_runs(when);
        let said = self.node.cri.sh(&self.counting.container, "echo reached");
        assert_eq!(said, "reached", "{when}");
        let pod = &self.counting.pod;
        let so_far = pod.log_lines("counting").len();
        pod.wait_log_lines("counting", |lines| lines.len() > so_far + 20);
    }

    /// Fails unless its processes are the same, and a daemon serves.
    #[track_caller]
    fn assert_runs(&self, when: &str) {
        self.node.wait_ready();
        assert_eq!(self.counting.process(), self.process, "{when}");
        assert_eq!(helpers(), self.helpers, "{when}");
    }
}

/// The command that fills the disk up to this many bytes. Nothing is written.
fn fill(left: u64) -> String {
    format!(
        "sync; fallocate --length $(($(stat --file-system --format '%f * %S' /) - {left})) {FULL}"
    )
}

/// Ends a thread also if the one beside it panics.
struct EndOf<'a>(&'a AtomicBool);

impl Drop for EndOf<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

/// Fills the disk as soon as [`FILL`] asks for it, and keeps it full until `is_over`.
fn keep_full(is_over: &AtomicBool) {
    let ends = || is_over.load(Ordering::SeqCst);
    let is_asked = || Path::new(ASKED).exists() || ends();
    assert!(eventually(LIMIT, is_asked), "dpkg calls no script");
    run(&["sh", "-ec", &fill(RESERVED * 2)]);
    let mut rest = File::create(REST).expect("there is room for it");
    while !ends() {
        // The journal makes room when it finds none.
        while rest.write_all(&[0; 4096]).is_ok() {}
        fs::write(FILLED, "").expect("it is on another disk");
        sleep(Duration::from_millis(100));
    }
}

/// The disk fills while dpkg unpacks: all is as before.
fn assert_unpack_without_space_changes_nothing(throughout: &Throughout<'_>) {
    let before = (state(), property("switchyard", "MainPID"));
    let program = fs::metadata(PROGRAM).expect("it is installed").len();
    run(&["sh", "-ec", &fill(RESERVED + program / 2)]);
    let output = dpkg(&["--install", BEFORE]);
    fs::remove_file(FULL).expect("it was made");
    let said = text(&output);
    assert!(
        !output.status.success() && said.contains("No space left on device"),
        "{said}"
    );
    let after = (state(), property("switchyard", "MainPID"));
    assert_eq!(after, before, "{said}");
    assert_eq!(run(&["dpkg", "--audit"]), "", "{said}");
    assert!(!Path::new(&format!("{PROGRAM}.dpkg-new")).exists());
    throughout.assert_continues("after an unpack without space");
}

/// The disk fills in postinst: the installation fails, and is completed when there is space.
fn assert_postinst_without_space_can_be_repeated(throughout: &Throughout<'_>) {
    write_policy(FILL);
    let is_over = AtomicBool::new(false);
    let output = std::thread::scope(|scope| {
        scope.spawn(|| keep_full(&is_over));
        let _end = EndOf(&is_over);
        let output = dpkg(&["--install", BEFORE]);
        throughout.assert_runs("on a full disk");
        output
    });
    for file in [FULL, REST, ASKED, FILLED, POLICY] {
        fs::remove_file(file).expect("it was made");
    }
    let said = text(&output);
    // The disk is full for postinst, or only when dpkg writes that it has succeeded.
    let failed = state();
    assert!(
        !output.status.success()
            && ["half-configured ", "installed "]
                .iter()
                .any(|state| failed.starts_with(state)),
        "{failed}: {said}"
    );
    let said = dpkg_succeeds(&["--configure", "-a"]);
    let completed = state();
    assert!(
        completed.starts_with("installed ") && completed.ends_with("-0"),
        "{completed}: {said}"
    );
    throughout.assert_continues("with space again");
}

/// dpkg ends when the files are in place, and nothing is configured: the former daemon continues, and the package is installed again.
fn assert_unpack_that_ended_can_be_repeated(throughout: &Throughout<'_>) {
    let daemon = property("switchyard", "MainPID");
    let script = fs::read_to_string(POSTRM).expect("it is installed");
    fs::write(POSTRM, HOLD).expect("root may");
    HeldUpgrade::begin(NOW).kill();
    fs::write(POSTRM, script).expect("root may");
    let ended = state();
    assert!(ended.starts_with("half-installed "), "{ended}");
    assert_eq!(property("switchyard", "MainPID"), daemon);
    throughout.assert_continues("after the end of dpkg");
    dpkg_succeeds(&["--install", NOW]);
    assert_ne!(property("switchyard", "MainPID"), daemon);
}

fn interrupted_upgrade(node: &GuestNode) {
    let throughout = Throughout::start(node);
    assert_unpack_without_space_changes_nothing(&throughout);
    assert_postinst_without_space_can_be_repeated(&throughout);
    assert_unpack_that_ended_can_be_repeated(&throughout);
    throughout.assert_continues("when it is completed");
    assert!(state().starts_with("installed "));
    assert_eq!(run(&["dpkg", "--audit"]), "");
    assert_eq!(lasting_errors(), [""; 0]);
}
