//! The sources of the configuration that commands read: files, variables and flags.

use std::path::PathBuf;

use clap::{Args, Command, FromArgMatches};
use switchyard_config::{Flag, Sources};

/// A `--set` that is not `KEY=VALUE`.
#[derive(Debug, thiserror::Error)]
#[error("`--set {0}` is malformed: write it as --set section.key=value")]
pub(super) struct MalformedSet(pub(super) String);

/// The file and the keys that a command is given.
#[derive(Debug, Args)]
pub(super) struct SourceArgs {
    /// The configuration file; /etc/switchyard/config.toml if that exists.
    #[arg(long, short, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Set a key, overriding all other sources, as in `--set paths.run=/run/other`.
    #[arg(long, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

/// The arguments of the daemon.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    sources: SourceArgs,
    /// Overrides log.level: a level, or filters such as "info,switchyard_cri=debug".
    #[arg(long, value_name = "LEVEL")]
    log_level: Option<String>,
}

// === impl SourceArgs ===

impl SourceArgs {
    /// The sources, with the environment of this process.
    pub(super) fn sources(&self) -> Result<Sources, MalformedSet> {
        self.within(environment())
    }

    /// The sources, with this environment.
    fn within(&self, env: Vec<(String, String)>) -> Result<Sources, MalformedSet> {
        let flag = |text: &String| match text.split_once('=') {
            Some((key, value)) if !key.is_empty() => Ok(Flag {
                flag: format!("--set {key}"),
                key: key.to_owned(),
                value: value.to_owned(),
            }),
            Some(_) | None => Err(MalformedSet(text.clone())),
        };
        Ok(Sources {
            file: self.config.clone(),
            env,
            flags: self.set.iter().map(flag).collect::<Result<_, _>>()?,
        })
    }
}

// === impl ServeArgs ===

impl ServeArgs {
    /// The arguments in the words of a command that runs the daemon; `None` if they are not those of this version.
    pub(super) fn of_words(words: &[String]) -> Option<Self> {
        let at = words.iter().position(|word| word == "serve")?;
        let command = Self::augment_args(Command::default());
        let matches = command.try_get_matches_from(&words[at..]).ok()?;
        Self::from_arg_matches(&matches).ok()
    }

    /// The sources, with the environment of this process.
    pub(super) fn sources(&self) -> Result<Sources, MalformedSet> {
        self.within(environment())
    }

    /// The sources, with this environment.
    pub(super) fn within(&self, env: Vec<(String, String)>) -> Result<Sources, MalformedSet> {
        let mut sources = self.sources.within(env)?;
        if let Some(level) = &self.log_level {
            sources.flags.push(Flag {
                flag: "--log-level".into(),
                key: "log.level".into(),
                value: level.clone(),
            });
        }
        Ok(sources)
    }
}

/// The sources without a file and flags.
pub(super) fn own_sources() -> Sources {
    file_sources(None)
}

/// The sources with this file, and without flags.
pub(super) fn file_sources(file: Option<PathBuf>) -> Sources {
    Sources {
        file,
        env: environment(),
        flags: Vec::new(),
    }
}

/// The environment, as far as it is UTF-8.
fn environment() -> Vec<(String, String)> {
    std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(words: &[&str]) -> Option<Sources> {
        let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
        let args = ServeArgs::of_words(&words)?;
        Some(args.within(Vec::new()).unwrap())
    }

    #[test]
    fn arguments_of_a_units_command_are_those_of_the_daemon() {
        let sources = of(&["/usr/bin/switchyard", "serve"]).unwrap();
        assert!(sources.file.is_none() && sources.flags.is_empty());
        let sources = of(&[
            "/usr/bin/env",
            "A=b",
            "switchyard",
            "serve",
            "-c",
            "/etc/x.toml",
            "--set=paths.run=/run/x",
            "--log-level",
            "debug",
        ]);
        let sources = sources.unwrap();
        assert_eq!(sources.file, Some("/etc/x.toml".into()));
        let keys: Vec<_> = sources.flags.iter().map(|flag| flag.key.as_str()).collect();
        assert_eq!(keys, ["paths.run", "log.level"]);
    }

    #[test]
    fn arguments_of_another_program_or_version_are_none() {
        assert!(of(&["/usr/local/bin/start-switchyard"]).is_none());
        assert!(of(&["switchyard", "serve", "--later"]).is_none());
    }
}
