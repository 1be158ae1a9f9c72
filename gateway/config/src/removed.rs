//! Keys that nothing reads any more: a file, a variable or a flag that sets one gets a warning, and the rest of it
//! is in force.

use figment::value::{Dict, Value};

use super::tree::path_of;

/// A key of older versions. It has become a constant.
#[derive(Debug)]
pub(super) struct RemovedKey {
    /// The dotted key.
    key: &'static str,
    /// The first version without it.
    since: &'static str,
    /// The value that is in force instead.
    value: &'static str,
    /// The name of the constant.
    constant: &'static str,
    /// The source file of the constant, below the root of the repository.
    file: &'static str,
}

/// All removed keys. `config.toml` says in the section of each what its constant is.
pub(super) const REMOVED: &[RemovedKey] = &[
    RemovedKey {
        key: "admin.header_timeout_seconds",
        since: "0.1.0",
        value: "10",
        constant: "HEADER_TIMEOUT",
        file: "gateway/operator/src/admin/server.rs",
    },
    RemovedKey {
        key: "admin.idle_timeout_seconds",
        since: "0.1.0",
        value: "120",
        constant: "IDLE_TIMEOUT",
        file: "gateway/operator/src/admin/server.rs",
    },
    RemovedKey {
        key: "admin.max_header_bytes",
        since: "0.1.0",
        value: "65536",
        constant: "MAX_HEADER_BYTES",
        file: "gateway/operator/src/admin/server.rs",
    },
    RemovedKey {
        key: "cri.max_message_bytes",
        since: "0.1.0",
        value: "16777216",
        constant: "MAX_MESSAGE_BYTES",
        file: "gateway/cri/src/routed.rs",
    },
    RemovedKey {
        key: "nomad.max_streams",
        since: "0.1.0",
        value: "100000",
        constant: "MAX_STREAMS",
        file: "gateway/nomad/src/transport.rs",
    },
    RemovedKey {
        key: "recovery.settle_seconds",
        since: "0.1.0",
        value: "30",
        constant: "CALL_TIMEOUT",
        file: "backends/containerd/src/predecessor_calls.rs",
    },
];

impl RemovedKey {
    /// The steps of its path.
    pub(super) fn path(&self) -> Vec<String> {
        path_of(self.key)
    }

    /// The warning about a value for it.
    pub(super) fn warning(&self) -> String {
        let Self {
            key,
            since,
            value,
            constant,
            file,
        } = self;
        format!(
            "{key}: has no effect since version {since}, where it is a constant, {value} ({constant} in {file}): \
             delete the key"
        )
    }
}

/// Takes the values of removed keys out of a layer, and returns their keys.
pub(super) fn take_removed(values: &mut Dict) -> Vec<&'static RemovedKey> {
    REMOVED
        .iter()
        .filter(|removed| take(values, &removed.path()).is_some())
        .collect()
}

/// Removes the value at a path, and returns it; none is found within an array.
pub(super) fn take(values: &mut Dict, path: &[String]) -> Option<Value> {
    let (first, rest) = path.split_first()?;
    if rest.is_empty() {
        return values.remove(first);
    }
    match values.get_mut(first)? {
        Value::Dict(_, below) => take(below, rest),
        Value::String(..)
        | Value::Char(..)
        | Value::Bool(..)
        | Value::Num(..)
        | Value::Empty(..)
        | Value::Array(..) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::*;
    use crate::renamed::RENAMED;
    use crate::tests::{Etc, env, flag, warnings};
    use crate::{Config, DOCUMENTED, Sources, load};

    #[test]
    fn removed_key_of_a_file_or_drop_in_is_a_warning_with_its_line() {
        let etc = Etc::new(
            "version = 1\n[recovery]\nwait_seconds = 3\nsettle_seconds = 60\n[nomad]\nmax_streams = \"none\"\n",
        );
        etc.drop_in(
            "10.toml",
            "version = 1\nadmin = { idle_timeout_seconds = 5, max_connections = 7 }\n",
        );
        let loaded = load(&etc.sources()).unwrap();
        assert_eq!(
            warnings(&etc, &loaded),
            [
                "config.toml:6: nomad.max_streams: has no effect since version 0.1.0, where it is a constant, \
                 100000 (MAX_STREAMS in gateway/nomad/src/transport.rs): delete the key",
                "config.toml:4: recovery.settle_seconds: has no effect since version 0.1.0, where it is a constant, \
                 30 (CALL_TIMEOUT in backends/containerd/src/predecessor_calls.rs): delete the key",
                "config.d/10.toml:2: admin.idle_timeout_seconds: has no effect since version 0.1.0, where it is a \
                 constant, 120 (IDLE_TIMEOUT in gateway/operator/src/admin/server.rs): delete the key",
            ]
        );
        let config = &loaded.effective.config;
        assert_eq!(
            (config.recovery.wait_seconds, config.admin.max_connections),
            (3, 7),
            "the rest counts"
        );
        assert!(!loaded.effective.dump(true).contains("settle_seconds"));
    }

    #[test]
    fn removed_key_of_a_variable_or_flag_is_a_warning() {
        let etc = Etc::new("version = 1\n[cri]\nmax_message_bytes = 4096\n");
        let sources = Sources {
            env: vec![env("SWITCHYARD_CRI__MAX_MESSAGE_BYTES", "1")],
            flags: vec![flag("admin.header_timeout_seconds", "1")],
            ..etc.sources()
        };
        let loaded = load(&sources).unwrap();
        assert_eq!(loaded.effective.config, Config::default());
        assert_eq!(loaded.overridden, [], "a key without effect overrides none");
        let starts: Vec<_> = warnings(&etc, &loaded)
            .into_iter()
            .map(|warning| warning.split(": has").next().unwrap().to_owned())
            .collect();
        assert_eq!(
            starts,
            [
                "config.toml:3: cri.max_message_bytes",
                "environment variable SWITCHYARD_CRI__MAX_MESSAGE_BYTES: cri.max_message_bytes",
                "flag --set admin.header_timeout_seconds: admin.header_timeout_seconds",
            ]
        );
    }

    #[test]
    fn file_with_every_removed_key_is_valid_and_has_no_effect() {
        let old: String = REMOVED
            .iter()
            .map(|removed| format!("{} = 1\n", removed.key))
            .collect();
        let etc = Etc::new(&format!("version = 1\n{old}"));
        let loaded = load(&etc.sources()).unwrap();
        assert_eq!(loaded.warnings.len(), REMOVED.len());
        assert_eq!(loaded.effective.config, Config::default());
        let without = Etc::new("version = 1\n");
        let present = load(&without.sources()).unwrap().effective;
        let reload = present.reload(&loaded.effective).unwrap();
        assert_eq!(reload.changes, [], "a reload has nothing to change");
    }

    #[test]
    fn keys_of_older_versions_are_read_for_two_releases_and_no_longer() {
        let release = |version: &str| -> [u32; 2] {
            let numbers: Vec<u32> = version
                .split('.')
                .take(2)
                .map(|number| number.parse().unwrap())
                .collect();
            numbers.try_into().unwrap()
        };
        let present = release(env!("CARGO_PKG_VERSION"));
        let removed = REMOVED.iter().map(|row| (row.key, row.since));
        let renamed = RENAMED.iter().map(|row| (row.key, row.since));
        for (key, since) in removed.chain(renamed) {
            let [major, minor] = release(since);
            assert!(
                [major, minor + 2] > present,
                "{key} was read for two releases since {since}: delete its row"
            );
        }
    }

    #[test]
    fn section_of_the_wrong_type_is_still_an_error() {
        let etc = Etc::new("version = 1\nrecovery = 7\n");
        assert!(
            load(&etc.sources())
                .unwrap_err()
                .to_string()
                .contains("recovery: expected a table")
        );
    }

    /// The value of a constant that is a number, a shifted number, or a duration in seconds.
    fn evaluated(definition: &str) -> u64 {
        let seconds = definition
            .strip_prefix("Duration::from_secs(")
            .and_then(|rest| rest.strip_suffix(')'));
        let number = |text: &str| text.trim().replace('_', "").parse::<u64>().unwrap();
        match seconds.unwrap_or(definition).split_once("<<") {
            Some((base, shift)) => number(base) << number(shift),
            None => number(seconds.unwrap_or(definition)),
        }
    }

    #[test]
    fn constant_of_each_removed_key_has_its_value_and_is_documented() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        for RemovedKey {
            key,
            since: _,
            value,
            constant,
            file,
        } in REMOVED
        {
            let source = fs::read_to_string(root.join(file)).unwrap();
            let begin = format!("const {constant}: ");
            let Some((_, definition)) = source.split_once(&begin) else {
                panic!("{key}: {file} has no {constant}");
            };
            let (_, definition) = definition.split_once(" = ").unwrap();
            let (definition, _) = definition.split_once(';').unwrap();
            assert_eq!(
                evaluated(definition).to_string(),
                *value,
                "{key}: {constant} in {file} is {definition}"
            );
            let documented = DOCUMENTED
                .lines()
                .any(|line| line.contains(constant) && line.contains(file));
            assert!(
                documented,
                "{key}: no line of config.toml names {constant} in {file}"
            );
        }
    }
}
