//! The tarball, the system extension and the rpm: what is in them, and what the tarball puts where on which kind of node.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, lchown};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use switchyard_tests::prereq;
use switchyard_tests::scratch::Scratch;
use switchyard_tests::stub_programs::StubPrograms;

use crate::architecture::repository;
use crate::debian_packages::build::{CANDIDATE, IDENTITY, X86_64, program_for};

/// Programs that a machine need not have: of the last two the first leaves the tree that it is given, the second that and the
/// specification.
const PROGRAMS: [(&str, &str); 6] = [
    ("candidate", CANDIDATE),
    ("dpkg", "echo amd64\n"),
    ("strip", ":\n"),
    (
        "cargo",
        "case $1 in tree) echo 'switchyard v0.1.0 (/x)' ;; metadata) echo '{\"packages\": []}' ;; esac\n",
    ),
    ("mksquashfs", "cp -r \"$1\" \"$2\"\n"),
    (
        "rpmbuild",
        "for word; do\n    case $word in\n        \"staged \"*) cp -r \"${word#staged }\" \"$STUBS/staged\" ;;\n        \
         *.spec) cp \"$word\" \"$STUBS/spec\" ;;\n    esac\ndone\n",
    ),
];

/// A directory in which packages are made of a program that is none.
pub(super) struct Maker {
    stubs: StubPrograms,
    scratch: Scratch,
}

impl Maker {
    pub(super) fn new() -> Self {
        let _ = prereq::require("jq", "jq");
        let _ = prereq::require("readelf", "binutils");
        let scratch = Scratch::new();
        let stubs = StubPrograms::new(scratch.path().join("stubs"), &PROGRAMS);
        Self { stubs, scratch }
    }

    /// Makes a package of this kind.
    fn pack(&self, kind: &str, program: &Path) -> Output {
        self.stubs
            .command(&repository().join("deploy/package"))
            .arg("--host-program")
            .arg(self.stubs.dir().join("candidate"))
            .arg(kind)
            .arg(program)
            .arg(self.scratch.path())
            .env("SOURCE_DATE_EPOCH", "1")
            .output()
            .expect("the script is in the repository")
    }

    /// The package of this kind; its path.
    #[track_caller]
    fn package(&self, kind: &str) -> PathBuf {
        let file = self.scratch.path().join(format!("program-for-{kind}"));
        let program = program_for(X86_64, file, IDENTITY);
        let packed = self.pack(kind, &program);
        assert!(packed.status.success(), "{packed:?}");
        PathBuf::from(String::from_utf8_lossy(&packed.stdout).trim_end())
    }

    /// The specification from which it makes the rpm.
    #[track_caller]
    pub(super) fn rpm_specification(&self) -> String {
        let _ = self.package("rpm");
        read(&self.stubs.dir().join("spec"))
    }

    /// The directory of the tarball, unpacked.
    #[track_caller]
    fn unpacked(&self) -> PathBuf {
        let unpacked = Command::new("tar")
            .arg("--extract")
            .arg("--file")
            .arg(self.package("tarball"))
            .arg("--directory")
            .arg(self.scratch.path())
            .status();
        assert!(unpacked.is_ok_and(|status| status.success()));
        self.scratch.path().join("switchyard-1.0.0-rc.1")
    }
}

/// Runs the tarball's `install` for an image.
fn install(tarball: &Path, root: &Path, words: &[&str]) -> Output {
    Command::new(tarball.join("install"))
        .arg("--root")
        .arg(root)
        .args(words)
        .output()
        .expect("it is a script")
}

/// Makes all files and directories those of another user, as who is not root unpacks them, with modes of a umask of 077 or of 002.
fn take_over(dir: &Path, group: u32) {
    let is_root = nix::unistd::geteuid().is_root();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(&next).expect("it is a directory") {
            let path = entry.expect("it can be read").path();
            if is_root {
                lchown(&path, Some(1000), Some(1000)).expect("root may");
            }
            if path.is_symlink() {
                continue;
            }
            let metadata = path.metadata().expect("it exists");
            let mode = (metadata.permissions().mode() & 0o700) | group;
            fs::set_permissions(&path, fs::Permissions::from_mode(mode)).expect("it is ours");
            if metadata.is_dir() {
                dirs.push(path);
            }
        }
    }
}

#[test]
fn files_are_those_of_who_installs_them_whoever_has_unpacked_the_tarball() {
    let maker = Maker::new();
    let tarball = maker.unpacked();
    let own = fs::metadata(maker.scratch.path()).expect("it exists").uid();
    for (index, (init, group)) in [
        ("systemd", 0o000),
        ("openrc", 0o000),
        ("systemd", 0o070),
        ("none", 0o020),
    ]
    .into_iter()
    .enumerate()
    {
        take_over(&tarball, group);
        let root = maker.scratch.path().join(format!("taken-over-{index}"));
        fs::create_dir(&root).expect("the directory can be written");
        let installed = install(&tarball, &root, &["--init", init]);
        assert!(installed.status.success(), "{installed:?}");
        for file in files(&root) {
            let metadata = root
                .join(&file)
                .symlink_metadata()
                .expect("it is among the files");
            assert_eq!(metadata.uid(), own, "{init} {group:o}: {file}");
            if metadata.is_symlink() {
                continue;
            }
            let is_program = file.contains("/bin/") || file.starts_with("etc/init.d/");
            let expected = if is_program { 0o755 } else { 0o644 };
            let mode = metadata.permissions().mode() & 0o7777;
            assert_eq!(mode, expected, "{init} {group:o}: {file}: {mode:o}");
        }
    }
}

/// Installs the tarball `$1` in a node with SELinux, whose programs write down their calls; `$CONTEXTS` are the file contexts of its policy.
const ON_A_NODE: &str = r#"
for directory in /etc /sys/fs /usr/local; do
    mount -t tmpfs tmpfs $directory
done
mkdir -p /usr/local/programs /etc/selinux/mine/contexts/files
[ -z "$ENFORCES" ] || { mkdir /sys/fs/selinux; : >/sys/fs/selinux/enforce; }
echo SELINUXTYPE=mine >/etc/selinux/config
printf "$CONTEXTS" >/etc/selinux/mine/contexts/files/file_contexts
for program in semodule restorecon; do
    printf '#!/bin/sh
echo "call: %s $*"
exit 1
' $program >/usr/local/programs/$program
done
chmod 0755 /usr/local/programs/*
PATH=/usr/local/programs:$PATH
"$1/install" --init none
"#;

#[test]
fn tarball_adds_labels_where_the_policy_has_types_for_containers() {
    let maker = Maker::new();
    let tarball = maker.unpacked();
    let has = "/usr/bin/runc\t--\tsystem_u:object_r:container_runtime_exec_t:s0\n";
    let own = "/usr/bin/switchyard\t--\tsystem_u:object_r:container_runtime_exec_t:s0\n";
    let lacks = "/usr/bin/runc\t--\tsystem_u:object_r:bin_t:s0\n";
    for (enforces, contexts, is_added) in [
        ("yes", has, true),
        ("yes", lacks, false),
        ("yes", own, false),
        ("yes", "", false),
        ("", has, false),
    ] {
        let output = Command::new("unshare")
            .args(["--mount", "sh", "-ec", ON_A_NODE, "sh"])
            .arg(&tarball)
            .env("ENFORCES", enforces)
            .env("CONTEXTS", contexts)
            .output()
            .expect("every system has it");
        // Neither program succeeds, and the installation does.
        assert!(output.status.success(), "{contexts}: {output:?}");
        let said = String::from_utf8_lossy(&output.stdout);
        let call = "call: semodule --priority=200 --install=/usr/local/share/switchyard/selinux/container-selinux/switchyard.cil";
        assert_eq!(said.contains(call), is_added, "{contexts}: {said}");
        assert_eq!(
            said.matches("call: semodule").count(),
            usize::from(is_added)
        );
        let labels = "call: restorecon -R /usr/local/bin/switchyard ";
        assert!(said.contains(labels), "{contexts}: {said}");
        assert!(said.contains("Installed in /usr/local."), "{said}");
    }
}

/// All files and links below a directory.
fn files(dir: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(next) = dirs.pop() {
        for entry in fs::read_dir(&next).expect("it is a directory") {
            let entry = entry.expect("it can be read");
            if entry.file_type().expect("it has one").is_dir() {
                dirs.push(entry.path());
            } else {
                let path = entry.path();
                let path = path.strip_prefix(dir).expect("it is below it");
                found.insert(path.display().to_string());
            }
        }
    }
    found
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn units_and_scripts_name_the_program_below_the_prefix() {
    let maker = Maker::new();
    let tarball = maker.unpacked();
    for (index, prefix) in ["/usr", "/usr/local", "/opt/switchyard", "/var/opt/sw-1.0_x"]
        .into_iter()
        .enumerate()
    {
        for (init, of_daemon, of_logkeeper, line) in [
            (
                "systemd",
                "etc/systemd/system/switchyard.service",
                "etc/systemd/system/switchyard-logkeeper.service",
                "ExecStart=PREFIX/bin/switchyard ",
            ),
            (
                "openrc",
                "etc/init.d/switchyard",
                "etc/init.d/switchyard-logkeeper",
                "command=PREFIX/bin/switchyard\n",
            ),
        ] {
            let root = maker.scratch.path().join(format!("{init}-{index}"));
            fs::create_dir(&root).expect("the directory can be written");
            let words = ["--prefix", prefix, "--init", init];
            let installed = install(&tarball, &root, &words);
            assert!(installed.status.success(), "{installed:?}");
            let line = line.replace("PREFIX", prefix);
            for file in [of_daemon, of_logkeeper] {
                let text = read(&root.join(file));
                assert!(text.contains(&line), "{file}: {text}");
                let others = text.matches("/usr/bin/switchyard").count();
                assert_eq!(others > 0, prefix == "/usr", "{file}: {text}");
                let mode = root
                    .join(file)
                    .metadata()
                    .expect("it exists")
                    .permissions()
                    .mode();
                assert_eq!(mode & 0o111 != 0, init == "openrc", "{file}: {mode:o}");
            }
            let below = root.join(prefix.trim_start_matches('/'));
            let link = below.join("lib/switchyard/nomad-plugins/switchyard-device");
            assert_eq!(
                link.canonicalize().expect("it leads to the program"),
                below
                    .join("bin/switchyard")
                    .canonicalize()
                    .expect("it is there")
            );
            assert_eq!(
                read(&root.join("etc/switchyard/config.toml")),
                "version = 1\n"
            );

            // Another installation keeps what the operator has written; a removal leaves nothing else.
            fs::write(
                root.join("etc/switchyard/config.toml"),
                "version = 1 # ours\n",
            )
            .expect("the file can be written");
            let again = install(&tarball, &root, &words);
            assert!(again.status.success(), "{again:?}");
            let removed = install(&tarball, &root, &[&words[..], &["--remove"]].concat());
            assert!(removed.status.success(), "{removed:?}");
            let left = files(&root);
            assert_eq!(
                left,
                BTreeSet::from(["etc/switchyard/config.toml".to_owned()])
            );
            assert_eq!(
                read(&root.join("etc/switchyard/config.toml")),
                "version = 1 # ours\n"
            );
        }
    }
}

/// The program says by status 3 that a network needs it. With another status this would remove files of the node.
#[test]
fn program_that_a_network_needs_is_not_removed() {
    let maker = Maker::new();
    let tarball = maker.unpacked();
    let prefix = maker.scratch.path().join("prefix");
    let program = prefix.join("bin/switchyard");
    fs::create_dir_all(prefix.join("bin")).expect("the directory can be written");
    let text = "#!/bin/sh\necho \"asked: $*\" >&2\nexit 3\n";
    fs::write(&program, text).expect("the file can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
    let refused = Command::new(tarball.join("install"))
        .args(["--remove", "--init", "none", "--prefix"])
        .arg(&prefix)
        .output()
        .expect("it is a script");
    let why = String::from_utf8_lossy(&refused.stderr);
    assert!(!refused.status.success(), "{why}");
    assert_eq!(
        why,
        "asked: package networks\ninstall: nothing is removed\n"
    );
    assert!(program.exists());
}

#[test]
fn directory_that_a_unit_cannot_name_is_refused() {
    let maker = Maker::new();
    let tarball = maker.unpacked();
    let root = maker.scratch.path().join("root");
    fs::create_dir(&root).expect("the directory can be written");
    for wrong in [
        "", "relative", "/", "//x", "/x/", "/a b", "/a;b", "/a|b", "/a&b", "/a'b", "/a$b", "/a%b",
        "/x/../y", "/x/.", "/x\ny",
    ] {
        for words in [
            ["--init", "systemd", "--prefix", wrong],
            ["--init", "systemd", "--units", wrong],
        ] {
            let refused = install(&tarball, &root, &words);
            let why = String::from_utf8_lossy(&refused.stderr);
            assert!(
                !refused.status.success() && why.contains("is no directory that units can name"),
                "{words:?}: {refused:?}"
            );
        }
    }
    for (words, why) in [
        (
            &["--init", "runit"][..],
            "is neither systemd, openrc nor none",
        ),
        (&["--prefix", "/opt/x"][..], "--root needs --init"),
        (&["--prefix"][..], "needs a value"),
        (&["--everywhere"][..], "is not an option"),
    ] {
        let refused = install(&tarball, &root, words);
        let said = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && said.contains(why),
            "{refused:?}"
        );
    }
    assert_eq!(files(&root), BTreeSet::new());
}

#[test]
fn system_extension_has_all_of_the_tarball_below_usr_and_starts_its_units() {
    let maker = Maker::new();
    let extension = maker.package("sysext");
    assert_eq!(extension, maker.scratch.path().join("switchyard.raw"));
    let files = files(&extension);
    assert!(
        files.iter().all(|file| file.starts_with("usr/")),
        "{files:#?}"
    );
    for file in [
        "usr/bin/switchyard",
        "usr/lib/switchyard/nomad-plugins/switchyard",
        "usr/lib/systemd/system/switchyard-logkeeper.service",
        "usr/lib/systemd/system/switchyard.service",
        "usr/share/man/man1/switchyard.1.gz",
        "usr/share/switchyard/config.toml",
    ] {
        assert!(files.contains(file), "{file}: {files:#?}");
    }
    let text = |file: &str| read(&extension.join("usr/lib").join(file));
    // By its name systemd tells to which image it belongs.
    let release = text("extension-release.d/extension-release.switchyard");
    for line in ["ID=_any", "ARCHITECTURE=x86-64"] {
        assert!(release.lines().any(|of| of == line), "{release}");
    }
    let wants = text("systemd/system/multi-user.target.d/10-switchyard.conf");
    for unit in ["switchyard.service", "switchyard-logkeeper.service"] {
        assert!(wants.contains(unit), "{wants}");
    }
    let directories = text("tmpfiles.d/switchyard.conf");
    assert!(
        directories.contains(" /usr/share/switchyard/config.toml"),
        "{directories}"
    );
}

#[test]
fn rpm_lists_every_staged_file_and_keeps_those_of_operators() {
    let maker = Maker::new();
    let package = maker.package("rpm");
    let name = "switchyard-1.0.0~rc.1-1.x86_64.rpm";
    assert_eq!(package, maker.scratch.path().join(name));
    let spec = read(&maker.stubs.dir().join("spec"));
    let (head, listed) = spec.split_once("\n%files\n").expect("it has a list");
    for line in [
        "Name: switchyard",
        // rpm takes a candidate for earlier than its release only with a tilde.
        "Version: 1.0.0~rc.1",
        "Release: 1",
        "AutoReqProv: no",
        "Requires: containerd",
    ] {
        assert!(head.lines().any(|of| of == line), "{line}: {head}");
    }
    for part in ["%description", "%install", "%post", "%preun", "%postun"] {
        assert!(head.lines().any(|of| of == part), "{part}: {head}");
    }
    let staged = files(&maker.stubs.dir().join("staged"));
    let expected: BTreeSet<String> = staged
        .iter()
        .map(|file| match file.strip_prefix("etc/") {
            Some(_) => format!("%config(noreplace) /{file}"),
            None => format!("/{file}"),
        })
        .collect();
    // Its directories are removed with it.
    for dir in [
        "/etc/switchyard/config.d",
        "/usr/lib/switchyard/nomad-plugins",
        "/usr/share/doc/switchyard/examples/nomad",
        "/usr/share/switchyard/selinux/refpolicy",
    ] {
        let line = format!("%dir {dir}");
        assert!(listed.lines().any(|of| of == line), "{line}: {listed}");
    }
    assert!(!listed.lines().any(|of| of == "%dir /usr/lib"), "{listed}");
    let listed: BTreeSet<String> = listed
        .lines()
        .filter(|line| !line.starts_with("%dir "))
        .map(str::to_owned)
        .collect();
    assert_eq!(listed, expected);
    assert!(listed.contains("%config(noreplace) /etc/switchyard/config.toml"));
    assert!(listed.contains("/usr/lib/systemd/system/switchyard.service"));
    // SUSE has no group of this name, and logrotate leaves out files of an unknown one.
    let rotation = read(&maker.stubs.dir().join("staged/etc/logrotate.d/switchyard"));
    assert!(rotation.contains("create 0640 root root\n"), "{rotation}");
}

#[test]
fn binary_that_needs_libraries_of_the_node_is_refused() {
    let maker = Maker::new();
    let program = maker.scratch.path().join("dynamic");
    let shell = fs::read("/bin/sh").expect("every system has it");
    fs::write(&program, [&shell[..], IDENTITY.as_bytes()].concat())
        .expect("the directory can be written");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the file is ours");
    for kind in ["tarball", "sysext", "rpm"] {
        let refused = maker.pack(kind, &program);
        let why = String::from_utf8_lossy(&refused.stderr);
        assert!(
            !refused.status.success() && why.contains("needs libraries of the node"),
            "{kind}: {why}"
        );
    }
}
