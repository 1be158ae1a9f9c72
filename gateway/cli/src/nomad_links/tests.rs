//! Tests of links, in scratch directories.

use super::*;

/// The names of the plugins, as far as a test needs them.
const NAMES: [&str; 2] = ["switchyard", "switchyard-device"];

/// A node: directories of agents, and the files of the package's state.
struct AgentDirs(tempfile::TempDir);

impl AgentDirs {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap().join(name)
    }

    fn install(&self, dir: &str) -> Result<Vec<PathBuf>, LinkError> {
        install(&self.path(dir), &NAMES, &self.path("state/record"))
    }

    fn recorded(&self) -> BTreeSet<PathBuf> {
        recorded(&self.path("state/record")).unwrap()
    }

    /// The names in a directory.
    fn names(&self, dir: &str) -> BTreeSet<String> {
        let entries = fs::read_dir(self.path(dir)).unwrap();
        entries
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect()
    }

    /// Takes the links of these directories away, as the removal of the package does; what could not be done.
    fn leave(&self, dirs: &BTreeSet<PathBuf>) -> Vec<LinkError> {
        let found = find(dirs).unwrap();
        assert!(found.unseen.is_empty(), "{found:?}");
        take_away(&found.links, &self.path("state/removed"))
    }

    fn put_back(&self) -> Vec<PathBuf> {
        let back = put_back(&self.path("state/removed")).unwrap();
        assert!(back.failed.is_empty(), "{back:?}");
        back.made
    }
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().copied().map(str::to_owned).collect()
}

#[test]
fn links_that_come_with_the_program_are_below_its_prefix() {
    for (program, dir, expected) in [
        (
            "/usr/bin/switchyard",
            "/usr/lib/switchyard/nomad-plugins",
            true,
        ),
        (
            "/usr/local/bin/switchyard",
            "/usr/local/lib/switchyard/nomad-plugins",
            true,
        ),
        (
            "/var/usrlocal/bin/switchyard",
            "/var/usrlocal/lib/switchyard/nomad-plugins",
            true,
        ),
        (
            "/opt/switchyard/bin/switchyard",
            "/opt/switchyard/lib/switchyard",
            true,
        ),
        (
            "/usr/local/bin/switchyard",
            "/usr/lib/switchyard/nomad-plugins",
            false,
        ),
        ("/usr/bin/switchyard", "/opt/nomad/data/plugins", false),
        ("/usr/bin/switchyard", "/usr/lib/switchyard-other", false),
        ("/", "/lib/switchyard", false),
    ] {
        let is_own = is_of_package(Path::new(dir), Path::new(program));
        assert_eq!(is_own, expected, "{program}: {dir}");
    }
}

#[test]
fn install_is_idempotent_and_overwrites_nothing_else() {
    let node = AgentDirs::new();
    for _ in 0..2 {
        let made = node.install("plugins").unwrap();
        assert_eq!(made, NAMES.map(|name| node.path("plugins").join(name)));
    }
    let exe = fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
    for name in NAMES {
        assert_eq!(
            fs::canonicalize(node.path("plugins").join(name)).unwrap(),
            exe
        );
    }
    assert_eq!(node.names("plugins"), set(&NAMES));
    assert_eq!(node.recorded(), BTreeSet::from([node.path("plugins")]));
    let precious = node.path("plugins/switchyard");
    fs::remove_file(&precious).unwrap();
    fs::write(&precious, "precious").unwrap();
    let error = node.install("plugins").unwrap_err();
    assert!(matches!(error, LinkError::InTheWay(_)), "{error}");
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
}

#[test]
fn nothing_is_installed_that_cannot_be_written_down() {
    let node = AgentDirs::new();
    fs::write(node.path("state"), "no directory").unwrap();
    assert!(node.install("plugins").is_err());
    assert!(node.names("plugins").is_empty());
    fs::remove_file(node.path("state")).unwrap();
    let broken = node.install("plug\nins").unwrap_err();
    assert!(broken.to_string().contains("none is installed"), "{broken}");
}

#[test]
fn record_has_each_directory_once_also_after_a_torn_line() {
    let node = AgentDirs::new();
    node.install("one").unwrap();
    let record = node.path("state/record");
    let mut torn = fs::read(&record).unwrap();
    torn.extend(b"/torn/by/a/pow");
    fs::write(&record, torn).unwrap();
    node.install("two").unwrap();
    node.install("one").unwrap();
    let expected = [node.path("one"), node.path("two"), "/torn/by/a/pow".into()];
    assert_eq!(node.recorded(), BTreeSet::from(expected));
    let lines = fs::read_to_string(&record).unwrap();
    assert_eq!(lines.lines().filter(|line| !line.is_empty()).count(), 3);
    assert!(recorded(&node.path("none")).unwrap().is_empty());
}

#[test]
fn links_to_this_program_are_taken_away_and_put_back_and_no_others() {
    let node = AgentDirs::new();
    node.install("one").unwrap();
    node.install("two").unwrap();
    let exe = std::env::current_exe().unwrap();
    // By hand, one by way of another link, as to what is in the package.
    symlink(&exe, node.path("one/docker")).unwrap();
    symlink("../two/switchyard", node.path("one/relative")).unwrap();
    symlink("/usr/bin/env", node.path("one/other")).unwrap();
    symlink("/none", node.path("one/dangling")).unwrap();
    fs::write(node.path("one/nomad-driver-podman"), "a program").unwrap();
    let all = node.names("one");

    let mut dirs = node.recorded();
    dirs.insert(node.path("none"));
    assert!(node.leave(&dirs).is_empty());
    let others = set(&["dangling", "nomad-driver-podman", "other"]);
    assert_eq!(node.names("one"), others);
    assert!(node.names("two").is_empty());
    // A second removal, after one that failed later, finds none, and forgets none.
    assert!(node.leave(&dirs).is_empty());
    assert_eq!(node.put_back().len(), 6);
    assert_eq!(node.names("one"), all);
    assert!(!node.path("state/removed").exists());
    assert!(node.put_back().is_empty());

    // What came there meanwhile stays.
    assert!(node.leave(&dirs).is_empty());
    fs::write(node.path("two/switchyard"), "another").unwrap();
    let made = node.put_back();
    assert_eq!(made.len(), 4, "{made:?}");
    assert_eq!(
        fs::read_to_string(node.path("two/switchyard")).unwrap(),
        "another"
    );
    // It led by way of that one.
    let missing: Vec<_> = all.difference(&node.names("one")).cloned().collect();
    assert_eq!(missing, ["relative"]);
}

#[test]
fn links_are_removed_although_they_cannot_be_written_down() {
    let node = AgentDirs::new();
    node.install("plugins").unwrap();
    fs::create_dir(node.path("state/removed")).unwrap();
    let failed = node.leave(&node.recorded());
    assert!(
        matches!(failed.as_slice(), [LinkError::Write { .. }]),
        "{failed:?}"
    );
    assert!(node.names("plugins").is_empty());
}

#[test]
fn file_of_removed_links_is_that_of_the_first_version() {
    let golden = r#"[
  {
    "path": "/opt/nomad/plugins/switchyard",
    "target": "/usr/lib/switchyard/nomad-plugins/switchyard"
  }
]
"#;
    let links = BTreeSet::from([PluginLink {
        path: "/opt/nomad/plugins/switchyard".into(),
        target: "/usr/lib/switchyard/nomad-plugins/switchyard".into(),
    }]);
    let node = AgentDirs::new();
    let removed = node.path("removed");
    note_removed(&links, &removed).unwrap();
    assert_eq!(fs::read_to_string(&removed).unwrap(), golden);
    let later = golden.replace("\"path\"", "\"of_a_later_version\": 1, \"path\"");
    for text in [golden, later.as_str()] {
        fs::write(&removed, text).unwrap();
        assert_eq!(read_removed(&removed).unwrap(), links, "{text}");
    }
}

#[test]
fn file_of_removed_links_that_cannot_be_read_is_kept() {
    let node = AgentDirs::new();
    node.install("plugins").unwrap();
    let torn = "[{\"path\": \"/pl";
    fs::write(node.path("state/removed"), torn).unwrap();
    let failed = node.leave(&node.recorded());
    assert!(
        matches!(failed.as_slice(), [LinkError::Write { .. }]),
        "{failed:?}"
    );
    let kept = fs::read_to_string(node.path("state/removed")).unwrap();
    assert_eq!(kept, torn);
    assert!(node.names("plugins").is_empty());
}

#[test]
fn link_that_cannot_be_made_holds_up_no_other_and_is_tried_again() {
    let node = AgentDirs::new();
    node.install("one").unwrap();
    node.install("two").unwrap();
    assert!(node.leave(&node.recorded()).is_empty());
    fs::remove_dir(node.path("one")).unwrap();
    fs::write(node.path("one"), "in the way").unwrap();
    let back = put_back(&node.path("state/removed")).unwrap();
    assert_eq!(back.made, NAMES.map(|name| node.path("two").join(name)));
    assert!(
        matches!(
            back.failed.as_slice(),
            [LinkError::Make { .. }, LinkError::Make { .. }]
        ),
        "{back:?}"
    );
    // What is removed meanwhile stays away.
    fs::remove_file(node.path("two/switchyard")).unwrap();
    fs::remove_file(node.path("one")).unwrap();
    fs::create_dir(node.path("one")).unwrap();
    let made = node.put_back();
    assert_eq!(made, NAMES.map(|name| node.path("one").join(name)));
    assert!(!node.path("state/removed").exists());
}

#[test]
fn directory_of_an_agent_that_is_gone_gets_no_link() {
    let node = AgentDirs::new();
    node.install("plugins").unwrap();
    assert!(node.leave(&node.recorded()).is_empty());
    fs::remove_dir(node.path("plugins")).unwrap();
    assert!(node.put_back().is_empty());
    assert!(!node.path("plugins").exists());
}

#[test]
fn directory_that_cannot_be_looked_at_is_reported_and_the_others_are_searched() {
    let node = AgentDirs::new();
    node.install("plugins").unwrap();
    fs::write(node.path("file"), "").unwrap();
    let dirs = BTreeSet::from([node.path("file"), node.path("plugins")]);
    let found = find(&dirs).unwrap();
    assert_eq!((found.links.len(), found.unseen.len()), (2, 1), "{found:?}");
}
