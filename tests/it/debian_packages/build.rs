//! The build of the package from a binary that this machine cannot run, and of the one with its debug information.

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

/// The home page of whoever publishes the package.
const HOMEPAGE: &str = "https://switchyard.example/";

/// The packages' and the other architecture's programs, cargo, and more.
fn stubs(dir: PathBuf, more: &[(&str, &str)]) -> StubPrograms {
    let dpkg_deb = format!("{CALL}cp -r \"$3\" \"$STUBS/tree\"; : >\"$4\"\n");
    let cargo = format!(
        "{CALL}case $1 in tree) echo 'switchyard v0.1.0 (/x)' ;; metadata) echo '{{\"packages\": []}}' ;; esac\n"
    );
    let libraries = "echo \"libraries of $DEB_HOST_ARCH\" >>\"$STUBS/calls\"; echo 'shlibs:Depends=libc6 (>= 2.36)'\n";
    let objcopy = format!("{CALL}for file; do :; done; : >\"$file\"\n");
    let programs: [(&str, &str); 6] = [
        ("dpkg", "echo amd64\n"),
        ("dpkg-deb", &dpkg_deb),
        ("dpkg-shlibdeps", libraries),
        ("aarch64-linux-gnu-strip", CALL),
        ("aarch64-linux-gnu-objcopy", &objcopy),
        ("cargo", &cargo),
    ];
    StubPrograms::new(dir, &[&programs[..], more].concat())
}

/// The numbers of machines in the headers of programs.
const AARCH64: u8 = 183;
pub(crate) const X86_64: u8 = 62;

/// A file that is a program for this machine by its header, needs no libraries, and contains this text.
pub(crate) fn program_for(machine: u8, file: PathBuf, text: &str) -> PathBuf {
    let mut header = [0; 64];
    // ELF of 64 bits, little-endian: a shared object (3), and the sizes of the header's parts.
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    for (place, value) in [
        (16, 3),
        (18, machine),
        (20, 1),
        (52, 64),
        (54, 56),
        (58, 64),
    ] {
        header[place] = value;
    }
    fs::write(&file, [&header[..], text.as_bytes()].concat())
        .expect("the directory can be written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    file
}

/// Packs a program for another architecture with the help of one for this machine.
fn pack(stubs: &StubPrograms, host: &Path, options: &[&str], program: &Path) -> Output {
    stubs
        .command(&repository().join("deploy/debian/build"))
        .args(options)
        .arg("--host-program")
        .arg(host)
        .arg(program)
        .arg(stubs.dir())
        .env("SOURCE_DATE_EPOCH", "1")
        .env("SWITCHYARD_HOMEPAGE", HOMEPAGE)
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
    let stubs = stubs(scratch.path().join("stubs"), &[]);
    let host = binary();

    let identity = format!("{version} {revision}");
    let program = program_for(AARCH64, scratch.path().join("same"), &identity);
    let packed = pack(&stubs, &host, &[], &program);
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
    // crun alone would leave a node without its default runtime.
    let depends = "\nDepends: libc6 (>= 2.36), containerd (>= 1.6) | containerd.io (>= 1.6), runc | containerd.io\n";
    assert!(control.contains(depends), "{control}");
    let homepage = format!("\nHomepage: {HOMEPAGE}\n");
    assert!(control.contains(&homepage), "{control}");
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

    let other = program_for(AARCH64, scratch.path().join("other"), version);
    let refused = pack(&stubs, &host, &[], &other);
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("is of another commit"),
        "{why}"
    );

    let stripped = pack(&stubs, &host, &["--symbols"], &program);
    let why = String::from_utf8_lossy(&stripped.stderr);
    assert!(
        !stripped.status.success() && why.contains("has no debug information"),
        "{why}"
    );
}

#[test]
fn binary_whose_libraries_are_not_known_is_refused_with_the_reason() {
    let _ = prereq::require("jq", "jq");
    let _ = prereq::require("readelf", "binutils");
    for (libraries, why) in [
        // A failure, an answer without a line for it, one without libraries, and none at all.
        ("echo 'no such package' >&2; exit 2\n", "no such package"),
        ("echo 'misc:Depends=x'; echo 'a warning' >&2\n", "a warning"),
        ("echo 'shlibs:Depends='\n", ""),
        (":\n", ""),
    ] {
        let scratch = Scratch::new();
        let more = [("dpkg-shlibdeps", libraries), ("candidate", CANDIDATE)];
        let stubs = stubs(scratch.path().join("stubs"), &more);
        let program = program_for(AARCH64, scratch.path().join("program"), IDENTITY);
        let host = stubs.dir().join("candidate");
        let refused = pack(&stubs, &host, &[], &program);
        let said = String::from_utf8_lossy(&refused.stderr);
        let expected = format!(
            "deploy/debian/build: dpkg-shlibdeps does not know which libraries the binary needs: {why}\n"
        );
        assert!(!refused.status.success(), "{libraries}: {said}");
        assert!(said.ends_with(&expected), "{libraries}: {said}");
    }
}

/// Shows a program with debug information.
const READELF: &str = "case $1 in
    --file-header) echo '  Machine:   AArch64' ;;
    --section-headers) echo '  [28] .debug_info PROGBITS' ;;
    --notes) echo '    Build ID: 0123456789abcdef' ;;
esac
";

/// A program of a candidate for a release, and what its binary contains.
pub(crate) const IDENTITY: &str = "1.0.0-rc.1 0123456789ab";
pub(crate) const CANDIDATE: &str = "case $1 in
    version) echo '{\"version\": \"1.0.0-rc.1\", \"revision\": \"0123456789ab\"}' ;;
    man) : >\"$3/switchyard.1\" ;;
    *) echo \"$*\" ;;
esac
";

#[test]
fn debug_information_is_a_package_that_needs_the_one_of_its_program_in_the_same_version() {
    let _ = prereq::require("jq", "jq");
    let scratch = Scratch::new();
    let more = [("readelf", READELF), ("candidate", CANDIDATE)];
    let stubs = stubs(scratch.path().join("stubs"), &more);
    let program = program_for(AARCH64, scratch.path().join("program"), IDENTITY);
    let host = stubs.dir().join("candidate");
    let packed = pack(&stubs, &host, &["--symbols"], &program);
    assert!(packed.status.success(), "{packed:?}");
    let printed = String::from_utf8_lossy(&packed.stdout);
    // dpkg takes a candidate for earlier than its release only with a tilde.
    let expected = ["switchyard", "switchyard-dbgsym"].map(|name| {
        let file = format!("{name}_1.0.0~rc.1-1_arm64.deb");
        stubs.dir().join(file).display().to_string()
    });
    assert_eq!(printed.lines().collect::<Vec<_>>(), expected);

    // The second package is copied into the first.
    let symbols = stubs.dir().join("tree/symbols");
    let file = "usr/lib/debug/.build-id/01/23456789abcdef.debug";
    assert!(symbols.join(file).is_file());
    let control = read(&symbols.join("DEBIAN/control"));
    for line in [
        "Package: switchyard-dbgsym",
        "Version: 1.0.0~rc.1-1",
        "Architecture: arm64",
        "Depends: switchyard (= 1.0.0~rc.1-1)",
        "Build-Ids: 0123456789abcdef",
    ] {
        assert!(control.lines().any(|of| of == line), "{line}: {control}");
    }
    let sums = read(&symbols.join("DEBIAN/md5sums"));
    assert!(sums.trim_end().ends_with(file), "{sums}");
}
