//! A unit, as systemd has loaded it: its state, and the environment and the arguments of the process that it starts next.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::local::PROGRAM_DIRS;
use super::view::{FILE_MAX, NodeView};

/// The properties that are read.
const PROPERTIES: &str = "--property=Environment,EnvironmentFiles,UnsetEnvironment,ExecStart,LoadState,UnitFileState,ActiveState,MainPID,ExecMainStatus,InvocationID";

/// The most variables that are read of each source.
const VARIABLES_MAX: usize = 4096;

/// A unit.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadedUnit {
    /// Its name.
    pub name: String,
    /// `loaded`, `masked`, `not-found` or another word of systemd.
    pub load_state: String,
    /// `enabled`, `disabled` or another word of systemd.
    pub file_state: String,
    /// `active`, `activating`, `inactive`, `failed` or another word of systemd.
    pub active_state: String,
    /// Its main process.
    pub main_pid: Option<u32>,
    /// The exit status of the last main process; 0 while one runs.
    pub exit_status: i32,
    /// The id of its last start, which the journal has with each line of its processes.
    pub invocation: String,
    /// The environment of its next process, as far as systemd's configuration decides it.
    pub environment: Vec<(String, String)>,
    /// The arguments of its next process, with the name of the program.
    pub arguments: Vec<String>,
    /// The first environment file without which it does not start, and which cannot be read.
    pub missing_file: Option<PathBuf>,
}

/// An environment file of a unit.
#[derive(Debug, PartialEq, Eq)]
struct EnvironmentFile {
    path: PathBuf,
    may_be_missing: bool,
}

impl LoadedUnit {
    /// The unit of this name; `None` without systemd, or if that does not answer. A unit that does not exist is one that is
    /// not loaded.
    #[must_use]
    pub fn read(view: &dyn NodeView, name: &str) -> Option<Self> {
        let dirs = PROGRAM_DIRS.map(PathBuf::from);
        let systemctl = view
            .program("systemctl", &dirs)
            .filter(|_| view.has_systemd())?;
        let show = |args: &[&str]| {
            let done = view.run(&systemctl, args).ok()?;
            let text = String::from_utf8_lossy(&done.stdout).into_owned();
            (done.status == Some(0) && !done.is_cut).then_some(text)
        };
        let of_unit = show(&["show", PROPERTIES, name])?;
        // What all units inherit: DefaultEnvironment= and `systemctl set-environment`.
        let of_manager = show(&["show", "--property=Environment"])?;
        Some(Self::parse(name, &of_unit, &of_manager, |path| {
            let bytes = view.read(path, FILE_MAX).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        }))
    }

    /// The unit, of the properties that systemctl shows of it and of the manager. Pure but for `read`.
    fn parse(
        name: &str,
        of_unit: &str,
        of_manager: &str,
        read: impl Fn(&Path) -> Option<String>,
    ) -> Self {
        let properties: BTreeMap<&str, &str> = of_unit
            .lines()
            .filter_map(|line| line.split_once('='))
            .collect();
        let get = |property: &str| properties.get(property).copied().unwrap_or_default();
        let inherited = of_manager
            .lines()
            .find_map(|line| line.strip_prefix("Environment="));
        let mut environment = Vec::new();
        set_all(&mut environment, variables(inherited.unwrap_or_default()));
        set_all(&mut environment, variables(get("Environment")));
        let mut missing_file = None;
        for file in environment_files(of_unit) {
            match read(&file.path) {
                Some(text) => set_all(&mut environment, variables_of_file(&text)),
                None if file.may_be_missing => {}
                None => missing_file = missing_file.or(Some(file.path)),
            }
        }
        for unset in words(get("UnsetEnvironment")) {
            environment
                .retain(|(name, value)| *name != unset && format!("{name}={value}") != unset);
        }
        Self {
            name: name.to_owned(),
            load_state: get("LoadState").to_owned(),
            file_state: get("UnitFileState").to_owned(),
            active_state: get("ActiveState").to_owned(),
            main_pid: get("MainPID").parse::<u32>().ok().filter(|pid| *pid != 0),
            exit_status: get("ExecMainStatus").parse().unwrap_or_default(),
            invocation: get("InvocationID").to_owned(),
            arguments: arguments(get("ExecStart"), &environment),
            environment,
            missing_file,
        }
    }

    /// Returns whether systemd has a unit of this name that can be started.
    #[must_use]
    pub fn is_loaded(&self) -> bool {
        self.load_state == "loaded"
    }

    /// Returns whether systemd cannot use its files.
    #[must_use]
    pub fn is_broken(&self) -> bool {
        matches!(self.load_state.as_str(), "bad-setting" | "error")
    }

    /// Returns whether it is started at the next boot.
    #[must_use]
    pub fn is_enabled(&self) -> bool {
        self.file_state.starts_with("enabled")
    }

    /// Returns whether its last start has ended with an error, and the next one has not begun.
    #[must_use]
    pub fn has_ended(&self) -> bool {
        self.main_pid.is_none() && self.exit_status != 0 && !self.is_inactive()
    }

    /// Returns whether it neither runs nor is to run, and has not failed.
    #[must_use]
    pub fn is_inactive(&self) -> bool {
        self.active_state == "inactive"
    }
}

/// Sets variables, of which the later ones take precedence.
fn set_all(environment: &mut Vec<(String, String)>, variables: Vec<(String, String)>) {
    for (name, value) in variables.into_iter().take(VARIABLES_MAX) {
        environment.retain(|(other, _)| *other != name);
        environment.push((name, value));
    }
}

fn variables(list: &str) -> Vec<(String, String)> {
    words(list)
        .iter()
        .filter_map(|word| variable_of(word))
        .collect()
}

/// The variable in a text such as `NAME=value`.
pub(super) fn variable_of(text: &str) -> Option<(String, String)> {
    let (name, value) = text.split_once('=')?;
    Some((name.to_owned(), value.to_owned()))
}

/// The words of a list that systemctl shows. One with special characters is in double quotes, with escapes.
fn words(list: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut is_quoted = false;
    let mut chars = list.chars();
    while let Some(next) = chars.next() {
        match next {
            '"' => {
                is_quoted = !is_quoted;
                word.get_or_insert_default();
            }
            '\\' if is_quoted => {
                word.get_or_insert_default()
                    .extend(chars.next().map(unescaped));
            }
            space if space.is_whitespace() && !is_quoted => words.extend(word.take()),
            other => word.get_or_insert_default().push(other),
        }
    }
    words.extend(word);
    words
}

/// The character that an escape such as `\n` stands for.
const fn unescaped(escape: char) -> char {
    match escape {
        'n' => '\n',
        't' => '\t',
        'r' => '\r',
        other => other,
    }
}

/// The environment files among properties, one a line, as in `EnvironmentFiles=/etc/default/x (ignore_errors=yes)`.
fn environment_files(properties: &str) -> Vec<EnvironmentFile> {
    let file = |line: &str| {
        let shown = line.strip_prefix("EnvironmentFiles=")?;
        let (path, ignores) = shown.rsplit_once(" (ignore_errors=")?;
        // A pattern need not match a file.
        let is_pattern = path.contains(['*', '?', '[']);
        Some(EnvironmentFile {
            path: path.into(),
            may_be_missing: is_pattern || ignores.starts_with("yes"),
        })
    };
    properties.lines().filter_map(file).collect()
}

/// The variables of a file of `EnvironmentFile=` (systemd.exec(5)), of which each is on one line.
fn variables_of_file(text: &str) -> Vec<(String, String)> {
    let lines = text.lines().map(str::trim);
    let lines = lines.filter(|line| !line.starts_with(['#', ';']));
    lines
        .filter_map(variable_of)
        .map(|(name, value)| (name.trim().to_owned(), unquoted(value.trim()).to_owned()))
        .collect()
}

/// A value without the quotes around it.
fn unquoted(value: &str) -> &str {
    let within = |quote: char| value.strip_prefix(quote)?.strip_suffix(quote);
    within('"').or_else(|| within('\'')).unwrap_or(value)
}

/// The arguments of a command that systemctl shows, as in `{ path=/bin/x ; argv[]=/bin/x serve ; … }`, with the variables that
/// systemd replaces.
fn arguments(shown: &str, environment: &[(String, String)]) -> Vec<String> {
    let value = |name: &str| {
        let found = environment.iter().find(|(known, _)| known == name);
        found.map_or("", |(_, value)| value.as_str())
    };
    let argv = shown.split_once("argv[]=").map_or("", |(_, rest)| rest);
    let argv = argv.split_once(" ; ").map_or(argv, |(argv, _)| argv);
    let mut arguments = Vec::new();
    for word in argv.split_whitespace() {
        match word.strip_prefix('$') {
            Some(name) if !name.starts_with(['{', '$']) => {
                arguments.extend(value(name).split_whitespace().map(str::to_owned));
            }
            Some(_) | None => arguments.push(with_variables(word, value)),
        }
    }
    arguments
}

/// A word in which each `${NAME}` is replaced by a value.
fn with_variables<'v>(word: &str, value: impl Fn(&str) -> &'v str) -> String {
    let mut text = String::new();
    let mut rest = word;
    while let Some((before, after)) = rest.split_once("${")
        && let Some((name, behind)) = after.split_once('}')
    {
        text.push_str(before);
        text.push_str(value(name));
        rest = behind;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn next_process_gets_what_the_manager_the_unit_and_its_files_set() {
        let of_unit = "Environment=A=unit \"B=two words\" \"C=\\\"\\$x\\\\\" D=unit\n\
                       EnvironmentFiles=/etc/first (ignore_errors=yes)\n\
                       EnvironmentFiles=/etc/absent (ignore_errors=yes)\n\
                       EnvironmentFiles=/etc/second (ignore_errors=no)\n\
                       UnsetEnvironment=LANG D=file\n\
                       ExecStart={ path=/usr/bin/switchyard ; argv[]=/usr/bin/switchyard serve $OPTIONS --config ${DIR}/x.toml ; ignore_errors=no ; pid=0 }\n\
                       LoadState=loaded\nUnitFileState=enabled-runtime\nActiveState=activating\nMainPID=0\nExecMainStatus=78\nInvocationID=0a1b\n";
        let of_manager = "Environment=LANG=C A=manager PATH=/bin\n";
        let unit = LoadedUnit::parse("switchyard.service", of_unit, of_manager, |path| match path
            .to_str()
            .unwrap()
        {
            "/etc/first" => Some("# x\nD = 'file'\nDIR=/etc/y\n".to_owned()),
            "/etc/second" => Some("OPTIONS=\"--set a.b=1\"\n".to_owned()),
            _ => None,
        });
        assert_eq!(
            unit.environment,
            [
                pair("PATH", "/bin"),
                pair("A", "unit"),
                pair("B", "two words"),
                pair("C", "\"$x\\"),
                pair("DIR", "/etc/y"),
                pair("OPTIONS", "--set a.b=1"),
            ]
        );
        assert_eq!(
            unit.arguments,
            [
                "/usr/bin/switchyard",
                "serve",
                "--set",
                "a.b=1",
                "--config",
                "/etc/y/x.toml"
            ]
        );
        assert!(unit.is_loaded() && unit.is_enabled() && !unit.is_inactive());
        assert_eq!((unit.main_pid, unit.exit_status), (None, 78));
        assert_eq!(unit.invocation, "0a1b");
        assert_eq!(unit.missing_file, None);
    }

    #[test]
    fn file_that_the_unit_needs_is_missed() {
        let text = "EnvironmentFiles=/etc/x/*.conf (ignore_errors=no)\n\
                    EnvironmentFiles=/etc/needed (ignore_errors=no)\nLoadState=masked\nMainPID=12\n";
        let unit = LoadedUnit::parse("x.service", text, "", |_| None);
        assert_eq!(unit.missing_file, Some("/etc/needed".into()));
        assert!(!unit.is_loaded() && unit.arguments.is_empty());
        assert_eq!(unit.main_pid, Some(12));
    }

    #[test]
    fn start_has_ended_once_its_process_has_an_exit_status_other_than_0() {
        let ended = |state: &str, main_pid: Option<u32>, exit_status: i32| {
            let unit = LoadedUnit {
                active_state: state.into(),
                main_pid,
                exit_status,
                ..LoadedUnit::default()
            };
            unit.has_ended()
        };
        assert!(ended("activating", None, 78) && ended("failed", None, 1));
        // It is at its start, was never started, has been stopped, or runs.
        assert!(!ended("activating", Some(7), 0) && !ended("activating", None, 0));
        assert!(!ended("inactive", None, 1) && !ended("active", Some(7), 0));
    }

    #[test]
    fn empty_list_has_no_word() {
        assert_eq!(words(""), Vec::<String>::new());
        assert_eq!(words("\"\" a\\b"), ["", "a\\b"]);
    }
}
