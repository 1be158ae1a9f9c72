//! Command line, environment and working directory of the main process.

use std::collections::{BTreeSet, HashSet};
use std::path::Path;

use indexmap::IndexMap;
use switchyard_core::spec::{EnvVar, PidMode, TaskSpec, command_line as words_of};
use switchyard_core::text::first_names;
use switchyard_core::{Error, Result};
use switchyard_linux::beginning;

use crate::input::ImageConfig;
use crate::text;

/// The `PATH` of a task whose image and request have none.
pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Size of the part of a line that a warning shows, in characters.
const SHOWN: usize = 80;

/// The path inside of the init process of a task that requests one; it is not among the image's own files.
pub const INIT_PATH: &str = "/dev/init";

/// An environment in which a later assignment replaces an earlier one in its place.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Environment {
    entries: IndexMap<String, String>,
}

impl Environment {
    /// Parses a spec's `NAME=value` lines. A line without `=` is a name without a value.
    pub fn from_lines<'a>(lines: impl IntoIterator<Item = &'a str>) -> Self {
        let mut environment = Self::default();
        for line in lines {
            let (name, value) = line.split_once('=').unwrap_or((line, ""));
            environment.set(name, value);
        }
        environment
    }

    /// Assigns `value` to `name`.
    pub fn set(&mut self, name: &str, value: &str) {
        match self.entries.get_mut(name) {
            Some(old) => value.clone_into(old),
            None => drop(self.entries.insert(name.to_owned(), value.to_owned())),
        }
    }

    /// Assigns `value` to `name` unless it has one.
    pub fn set_default(&mut self, name: &str, value: &str) {
        if self.get(name).is_none() {
            self.set(name, value);
        }
    }

    /// The value of `name`.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&str> {
        self.entries.get(name).map(String::as_str)
    }

    /// Assigns the variables of a request, in its order.
    ///
    /// A value that is not UTF-8 is converted with replacement characters and named in `warnings`, since a
    /// spec is JSON.
    ///
    /// # Errors
    /// `InvalidArgument`, naming `env`, for a name that is empty or contains `=` or NUL, or a value that
    /// contains NUL. The message never contains the value.
    pub fn assign(&mut self, vars: &[EnvVar], warnings: &mut Vec<String>) -> Result<()> {
        let mut replaced = BTreeSet::new();
        for EnvVar { name, value } in vars {
            if name.is_empty() || name.contains(['=', '\0']) {
                return Err(Error::invalid(
                    "env",
                    format!("{name:?} cannot name a variable"),
                ));
            }
            if value.contains(&0) {
                return Err(Error::invalid(
                    "env",
                    format!("the value of {name} contains a NUL byte"),
                ));
            }
            let text = String::from_utf8_lossy(value);
            if text.as_bytes() != value.as_slice() {
                replaced.insert(name.as_str());
            }
            self.set(name, &text);
        }
        // One warning for all: the list of a client can have any length.
        if !replaced.is_empty() {
            let count = replaced.len();
            let names = first_names(replaced.iter().copied());
            warnings.push(format!(
                "values of variables ({count}: {names}) are not UTF-8: bytes that are not were replaced by U+FFFD"
            ));
        }
        Ok(())
    }

    /// Removes variables, except those that the request sets.
    fn unset(&mut self, names: &[String], set: &[EnvVar]) {
        if names.is_empty() {
            return;
        }
        let set: HashSet<&str> = set.iter().map(|var| var.name.as_str()).collect();
        let unset: HashSet<&str> = names
            .iter()
            .map(String::as_str)
            .filter(|name| !set.contains(name))
            .collect();
        self.entries
            .retain(|name, _| !unset.contains(name.as_str()));
    }

    /// The lines of a spec.
    #[must_use]
    pub fn into_lines(self) -> Vec<String> {
        self.entries
            .into_iter()
            .map(|(name, value)| format!("{name}={value}"))
            .collect()
    }
}

/// The environment of a task: the image's, then `HOSTNAME`, then the request's; `PATH` and `TERM` if none of these has
/// them. What the request unsets is in none of it.
///
/// # Errors
/// As [`Environment::assign`].
pub fn of_task(
    task: &TaskSpec,
    image: &ImageConfig,
    hostname: &str,
    warnings: &mut Vec<String>,
) -> Result<Environment> {
    let mut environment = Environment::default();
    let mut left_out = Vec::new();
    for line in &image.env {
        match line.split_once('=') {
            Some((name, value)) if !name.is_empty() && !line.contains('\0') => {
                environment.set(name, value)
            }
            Some(_) | None => left_out.push(line),
        }
    }
    // One for all: an image may have a hundred thousand.
    if let Some(first) = left_out.first() {
        let shown = beginning(first, SHOWN);
        let count = left_out.len();
        warnings.push(format!(
            "lines in the image's environment are no assignments and are left out ({count}), such as {shown:?}"
        ));
    }
    if !hostname.is_empty() {
        environment.set("HOSTNAME", hostname);
    }
    environment.assign(&task.env, warnings)?;
    environment.set_default("PATH", DEFAULT_PATH);
    if task.stdio.tty {
        environment.set_default("TERM", "xterm");
    }
    environment.unset(&task.unset_env, &task.env);
    Ok(environment)
}

/// The command line of a task, of its own words and those of its image. The init process, if requested, is put before
/// them.
///
/// # Errors
/// `InvalidArgument`, naming `command`, if there is nothing to run, or for a word with a NUL byte; naming
/// `init`, where an init process has no process namespace of its own.
pub fn command_line(task: &TaskSpec, image: &ImageConfig) -> Result<Vec<String>> {
    let words = words_of((&task.command, &task.args), (&image.entrypoint, &image.cmd));
    let mut words = checked_command("command", words)?;
    if task.init {
        if task.pid != PidMode::Private {
            return Err(Error::invalid(
                "init",
                "it needs a process namespace of the task's own",
            ));
        }
        words.insert(0, INIT_PATH.to_owned());
    }
    Ok(words)
}

/// Returns `words` if they can be run.
///
/// # Errors
/// `InvalidArgument`, naming `field`.
pub fn checked_command(field: &str, words: Vec<String>) -> Result<Vec<String>> {
    match words.first() {
        None => {
            return Err(Error::invalid(
                field,
                "nothing to run: neither the request nor the image names a program",
            ));
        }
        Some(program) if program.is_empty() => {
            return Err(Error::invalid(field, "the name of the program is empty"));
        }
        Some(_) => {}
    }
    for word in &words {
        text::without_nul(field, word)?;
    }
    Ok(words)
}

/// The working directory: the request's, or the image's (a relative one is taken below the root), or the
/// root.
///
/// # Errors
/// `InvalidArgument`, naming `cwd`, for a request's path that is not absolute, or for a path through an open
/// descriptor.
pub fn working_directory(cwd: Option<&Path>, image: &ImageConfig) -> Result<String> {
    match cwd {
        Some(path) => checked_directory(path),
        None => {
            let text = format!(
                "/{}",
                text::without_nul("image cwd", &image.cwd)?.trim_start_matches('/')
            );
            no_descriptor("image cwd", text)
        }
    }
}

/// A path as a working directory. `..` is kept: the kernel resolves it inside the root file system.
///
/// # Errors
/// `InvalidArgument`, naming `cwd`, for a path that is not absolute or not UTF-8, or leads to an open
/// descriptor.
pub fn checked_directory(path: &Path) -> Result<String> {
    let text = text::utf8("cwd", path)?;
    if !path.is_absolute() {
        return Err(Error::invalid(
            "cwd",
            format!("{text:?} is not an absolute path"),
        ));
    }
    no_descriptor("cwd", text.to_owned())
}

/// Refuses a path through an open descriptor of a process: the files that a runtime has open while it creates
/// a container are of the host (the class of CVE-2024-21626). Symlinks of the image may still lead there: the
/// runtime has to check those.
fn no_descriptor(field: &str, text: String) -> Result<String> {
    let mut names: Vec<&str> = Vec::new();
    for name in text.split('/') {
        match name {
            "" | "." => {}
            ".." => drop(names.pop()),
            name => names.push(name),
        }
        // Also in the middle of the path: the rest is resolved from the descriptor.
        if let ["proc", _, "fd", _] | ["proc", _, "task", _, "fd", _] | ["dev", "fd", _] = names[..]
        {
            let why = format!(
                "{text:?} leads to an open descriptor of a process, which is no place to start in"
            );
            return Err(Error::invalid(field, why));
        }
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn var(name: &str, value: &[u8]) -> EnvVar {
        EnvVar {
            name: name.to_owned(),
            value: value.to_vec(),
        }
    }

    #[test]
    fn non_utf8_environment_value_is_replaced_and_named() {
        let mut environment = Environment::default();
        let mut warnings = Vec::new();
        environment
            .assign(&[var("RAW", b"a\xffb")], &mut warnings)
            .unwrap();
        assert_eq!(environment.get("RAW"), Some("a\u{fffd}b"));
        let end = "are not UTF-8: bytes that are not were replaced by U+FFFD";
        assert_eq!(
            warnings,
            [format!("values of variables (1: \"RAW\") {end}")]
        );
        let many: Vec<EnvVar> = (1000..2000)
            .map(|number| var(&format!("N{number}"), b"\xff"))
            .collect();
        warnings.clear();
        environment.assign(&many, &mut warnings).unwrap();
        let names = "\"N1000\", \"N1001\", \"N1002\" and 997 more";
        assert_eq!(
            warnings,
            [format!("values of variables (1000: {names}) {end}")]
        );
    }

    #[test]
    fn invalid_environment_is_rejected_without_showing_values() {
        for bad in [
            var("", b"x"),
            var("A=B", b"x"),
            var("A\0", b"x"),
            var("A", b"secret\0"),
        ] {
            let error = Environment::default()
                .assign(&[bad], &mut Vec::new())
                .unwrap_err();
            assert!(error.to_string().starts_with("env: "), "{error}");
            assert!(!error.to_string().contains("secret"), "{error}");
        }
    }

    #[test]
    fn unset_variable_is_absent_unless_the_request_sets_it() {
        let mut environment =
            Environment::from_lines(["A=image", "B=image", "KEPT=image", "PATH=/bin"]);
        environment
            .assign(&[var("A", b"own")], &mut Vec::new())
            .unwrap();
        let names = ["A", "B", "PATH", "NONE"].map(str::to_owned);
        environment.unset(&names, &[var("A", b"own")]);
        assert_eq!(environment.into_lines(), ["A=own", "KEPT=image"]);
    }

    #[test]
    fn relative_working_directory_of_image_is_rooted_and_of_request_rejected() {
        let image = |cwd: &str| ImageConfig {
            cwd: cwd.to_owned(),
            ..Default::default()
        };
        assert_eq!(
            working_directory(None, &image("srv/app")).unwrap(),
            "/srv/app"
        );
        assert_eq!(working_directory(None, &image("")).unwrap(), "/");
        assert_eq!(
            working_directory(Some(Path::new("/x")), &image("/y")).unwrap(),
            "/x"
        );
        let error = working_directory(Some(Path::new("x")), &image("/y")).unwrap_err();
        assert!(error.to_string().starts_with("cwd: "), "{error}");
    }

    #[test]
    fn working_directory_in_a_descriptor_is_rejected() {
        let image = |cwd: &str| ImageConfig {
            cwd: cwd.to_owned(),
            ..Default::default()
        };
        for bad in [
            "/proc/self/fd/7",
            "//proc/./self//fd/7/../../..",
            "/srv/../proc/thread-self/fd/8",
            "/proc/1/fd/3",
            "/proc/1/task/1/fd/3",
            "/dev/fd/7",
        ] {
            let error = working_directory(Some(Path::new(bad)), &image(""))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("cwd: ") && error.contains(bad), "{error}");
            let error = working_directory(None, &image(bad))
                .unwrap_err()
                .to_string();
            assert!(error.starts_with("image cwd: "), "{error}");
        }
        for good in [
            "/proc",
            "/proc/self/fdinfo",
            "/srv/proc/self/fd/7",
            "/dev",
            "/proc/self/fd/../..",
        ] {
            assert_eq!(working_directory(None, &image(good)).unwrap(), good);
        }
    }

    proptest! {
        #[test]
        fn last_environment_assignment_wins_without_duplicates(
            pairs in prop::collection::vec(("[A-D]", "[a-z=]{0,4}"), 0..24),
        ) {
            let vars: Vec<EnvVar> = pairs.iter().map(|(name, value)| var(name, value.as_bytes())).collect();
            let mut environment = Environment::default();
            environment.assign(&vars, &mut Vec::new()).unwrap();
            for (name, _) in &pairs {
                let last = pairs.iter().rev().find(|(other, _)| other == name).map(|(_, value)| value.as_str());
                prop_assert_eq!(environment.get(name), last);
            }
            let lines = environment.into_lines();
            let names: BTreeSet<&str> =
                lines.iter().filter_map(|line| line.split('=').next()).collect();
            prop_assert_eq!(names.len(), lines.len());
        }
    }
}
