//! The program's part in the removal of the package: it notes where the daemon works, and takes away the links of Nomad agents.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use switchyard_tests::daemon::binary;
use switchyard_tests::scratch::Scratch;

/// A node whose package has its state in a scratch directory.
struct LeavingNode(Scratch);

impl LeavingNode {
    fn dir(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs `switchyard` with a configuration of its own.
    fn switchyard(&self, words: &[&str], last: &Path, more: (&str, &str)) -> Output {
        let mut command = Command::new(binary());
        command
            .args(words)
            .arg(last)
            .env("SWITCHYARD_NOMAD_PLUGINS", self.dir("state/nomad-plugins"))
            .env("SWITCHYARD_PATHS__RUN", self.dir("run"))
            .env("SWITCHYARD_CONTAINERD__MODE", "external")
            .env("SWITCHYARD_CONTAINERD__ADDRESS", self.dir("k3s/c.sock"))
            .env(more.0, more.1);
        command.output().expect("the binary exists")
    }

    #[track_caller]
    fn succeeds(&self, words: &[&str], last: &Path) -> String {
        let output = self.switchyard(words, last, ("LC_ALL", "C"));
        assert!(output.status.success(), "{words:?}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }

    /// The names in the plugin_dir.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(self.dir("plugins")).expect("it was made");
        let mut names: Vec<_> = entries
            .map(|entry| {
                let name = entry.expect("it can be listed").file_name();
                name.to_string_lossy().into_owned()
            })
            .collect();
        names.sort();
        names
    }
}

const INSTALLED: [&str; 3] = ["other", "switchyard", "switchyard-device"];

/// A node with an installation, and a link to another program beside it.
fn node() -> LeavingNode {
    let node = LeavingNode(Scratch::new());
    node.succeeds(&["nomad-plugin", "install"], &node.dir("plugins"));
    symlink("/usr/bin/env", node.dir("plugins/other"))
        .expect("the scratch directory can be written");
    assert_eq!(node.names(), INSTALLED);
    node
}

#[test]
fn removal_notes_where_the_daemon_works_and_takes_links_away_until_the_next_installation() {
    let node = node();
    let state = node.dir("state");
    for _ in 0..2 {
        node.succeeds(&["package", "leave", "--dir"], &state);
        assert_eq!(node.names(), ["other"]);
    }
    let places = fs::read_to_string(state.join("places")).expect("it was written");
    for (kind, dir) in [
        ("run", node.dir("run")),
        ("state", "/var/lib/switchyard".into()),
        ("containerd", node.dir("k3s")),
        ("containerd", node.dir("k3s/containerd")),
    ] {
        let expected = format!("{kind} {}", dir.display());
        assert!(places.lines().any(|line| line == expected), "{places}");
    }
    for _ in 0..2 {
        node.succeeds(&["package", "return", "--dir"], &state);
        assert_eq!(node.names(), INSTALLED);
    }
}

#[test]
fn removal_works_with_an_invalid_configuration() {
    let node = node();
    let state = node.dir("state");
    let left = node.switchyard(
        &["package", "leave", "--dir"],
        &state,
        ("SWITCHYARD_EXEC__MAX_PER_CONTAINER", "0"),
    );
    let said = String::from_utf8_lossy(&left.stderr);
    assert!(
        left.status.success() && said.contains("are not known"),
        "{left:?}"
    );
    assert_eq!(node.names(), ["other"]);
    assert!(state.join("places").exists());
}

#[test]
fn uninstall_removes_the_links_of_installations_or_of_directories_that_it_is_given() {
    let node = node();
    let said = node.succeeds(&["nomad-plugin"], Path::new("uninstall"));
    assert_eq!(said.matches("removed ").count(), 2, "{said}");
    assert_eq!(node.names(), ["other"]);
    symlink(binary(), node.dir("plugins/docker")).expect("the scratch directory can be written");
    fs::remove_file(node.dir("state/nomad-plugins")).expect("it was written");
    let said = node.succeeds(&["nomad-plugin"], Path::new("uninstall"));
    assert_eq!(said, "no link leads to this program\n");
    let said = node.succeeds(&["nomad-plugin", "uninstall"], &node.dir("plugins"));
    assert!(said.contains("plugins/docker\n"), "{said}");
    assert_eq!(node.names(), ["other"]);
}
