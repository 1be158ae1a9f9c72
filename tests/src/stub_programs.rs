//! Programs that stand before all others in the PATH of a script, in the place of those that a test cannot call.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::prereq;
use crate::root::PrivateRoot;

/// A directory in which scripts run, with stubs: shell scripts that find this directory in `$STUBS`.
#[derive(Debug)]
pub struct StubPrograms {
    dir: PathBuf,
}

impl StubPrograms {
    /// Makes the directory, with these programs: their names, and their scripts.
    ///
    /// # Panics
    /// When it exists, or cannot be written.
    #[must_use]
    pub fn new(dir: PathBuf, programs: &[(&str, &str)]) -> Self {
        fs::create_dir(&dir).expect("the directory above can be written");
        let stubs = Self { dir };
        for (name, script) in programs {
            stubs.put(name, script);
        }
        stubs
    }

    /// Another process writes the program: a child that another test forks meanwhile would inherit a descriptor for
    /// writing, and executing the file would fail with ETXTBSY.
    fn put(&self, name: &str, script: &str) {
        self.write("draft", &format!("#!/bin/sh\n{script}"));
        let installed = Command::new(prereq::require("install", "coreutils"))
            .arg("-m755")
            .arg(self.dir.join("draft"))
            .arg(self.dir.join(name))
            .status();
        assert!(
            installed.is_ok_and(|status| status.success()),
            "{name} cannot be put there"
        );
    }

    /// The directory.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// Writes a file into the directory.
    ///
    /// # Panics
    /// When it cannot be written.
    pub fn write(&self, name: &str, text: &str) {
        fs::write(self.dir.join(name), text).expect("the directory can be written");
    }

    /// A shell that runs there, and reads this script from its input, as over ssh.
    ///
    /// # Panics
    /// When the directory cannot be written.
    #[must_use]
    pub fn shell(&self, script: &str, words: &[&str]) -> Command {
        self.write("script", script);
        let input = File::open(self.dir.join("script")).expect("it was just written");
        let mut command = self.command(Path::new("sh"));
        command.arg("-s").args(words).stdin(input);
        command
    }

    /// A program that runs there.
    #[must_use]
    pub fn command(&self, program: &Path) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut command = Command::new(program);
        command
            .current_dir(&self.dir)
            .env("PATH", format!("{}:{path}", self.dir.display()))
            .env("STUBS", &self.dir);
        command
    }

    /// The lines that stubs have written into the file `calls`.
    #[must_use]
    pub fn calls(&self) -> Vec<String> {
        let text = fs::read_to_string(self.dir.join("calls")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }
}

/// Installs a runc that names this version as its own, and is the machine's otherwise: which one that is, depends on the suite of Debian.
/// Returns the configuration that uses it.
///
/// # Panics
/// When it is installed already, or the root cannot be written.
#[must_use]
pub fn runc_of_version(root: &PrivateRoot, version: &str) -> String {
    let script = format!(
        "case \"$1\" in --version) echo 'runc version {version}'; exit ;; esac\nexec {} \"$@\"\n",
        prereq::require("runc", "runc").display()
    );
    let stubs = StubPrograms::new(
        root.path().join("runc-of-version"),
        &[("runc", script.as_str())],
    );
    format!(
        "[containerd.runtimes.runc]\nbinary = {:?}\n",
        stubs.dir().join("runc")
    )
}
