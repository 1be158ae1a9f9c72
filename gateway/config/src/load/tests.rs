//! Tests of what a start ignores and a check refuses.

use proptest::prelude::*;
use switchyard_linux::report;

use crate::load::layers::{Layer, LayerSource, Layers};
use crate::renamed::RenamedKey;
use crate::tests::documented::keys as documented;
use crate::tests::{Etc, env, flag};
use crate::tree::path_of;
use crate::{Config, ConfigError, DOCUMENTED, Loaded, Sources, load, load_for_start};

use super::{IGNORED_MAX, Unknown, load_with, nest};

/// Loads as a start does; returns also what that ignores, with the directory of the files left out.
#[track_caller]
fn ignored(etc: &Etc, sources: &Sources) -> (Loaded, Vec<String>) {
    let loaded = load_for_start(sources).unwrap_or_else(|error| panic!("{}", report(&error)));
    let file = etc.sources().file.unwrap();
    let dir = format!("{}/", file.parent().unwrap().display());
    let texts = loaded
        .ignored
        .iter()
        .map(|text| text.replace(&dir, ""))
        .collect();
    (loaded, texts)
}

/// The sections of the documented configuration.
fn sections() -> Vec<String> {
    DOCUMENTED
        .lines()
        .filter_map(|line| Some(line.strip_prefix('[')?.strip_suffix(']')?.to_owned()))
        .collect()
}

#[test]
fn start_ignores_unknown_keys_and_values_of_all_layers_and_the_rest_is_in_force() {
    let etc =
        Etc::new("version = 1\n[log]\nlevle = \"debug\"\nlevel = \"warn\"\n[future]\nx = 1\n");
    etc.drop_in("10.toml", "version = 1\nlog = { format = \"json\" }\n");
    etc.drop_in("20.toml", "version = 1\n[log]\nformat = \"xml\"\n");
    let sources = Sources {
        env: vec![
            env("SWITCHYARD_CONTAINERD__INFRA", "sometimes"),
            env("SWITCHYARD_RECOVERY__WAIT", "3"),
        ],
        flags: vec![flag("images.sign", "true")],
        ..etc.sources()
    };
    let (loaded, texts) = ignored(&etc, &sources);
    let mut expected = [
        "config.toml:3: unknown key \"levle\" in [log]: did you mean \"level\"? (ignored)",
        "config.toml:5: unknown key \"future\" at the top level: known keys are version, ",
        "config.d/20.toml:3: log.format: expected one of \"auto\", \"text\", \"json\", found \"xml\" \
         (ignored; in force is \"json\": ",
        "environment variable SWITCHYARD_CONTAINERD__INFRA: containerd.infra: expected one of ",
        "environment variable SWITCHYARD_RECOVERY__WAIT: unknown key \"wait\" in [recovery]: ",
        "flag --set images.sign: unknown key \"sign\" in [images]: known keys are ",
    ]
    .to_vec();
    for text in &texts {
        let before = expected.len();
        expected.retain(|start| !text.starts_with(start));
        assert_eq!(expected.len(), before - 1, "{text}");
    }
    assert_eq!(expected, [""; 0]);
    let mut wanted = Config::default();
    wanted.log.level = "warn".to_owned();
    wanted.log.format = crate::LogFormat::Json;
    assert_eq!(loaded.effective.config, wanted);
    assert!(
        loaded.effective.dump(true).contains("config.d/10.toml:2"),
        "the value that counts has its own position"
    );
    assert_eq!(
        loaded.overridden,
        [],
        "nothing is overridden by what is ignored"
    );
    assert_eq!(loaded.warnings, [""; 0]);
    let error = load(&sources).unwrap_err();
    assert!(
        matches!(
            error,
            ConfigError::UnknownKey { .. } | ConfigError::WrongType { .. }
        ),
        "{error}"
    );
}

#[test]
fn start_refuses_what_it_does_not_know_of_security_and_what_is_wrong() {
    for (text, why) in [
        ("[admin]\nlissten = \"x\"", "did you mean \"listen\"?"),
        ("[admin]\nlater = 1", "unknown key \"later\""),
        (
            "[cri]\nsocket_grup = \"x\"",
            "did you mean \"socket_group\"?",
        ),
        ("[cri]\nunset_seccomp = \"audit\"", "cri.unset_seccomp"),
        (
            "[conteinerd]\nmode = \"external\"",
            "did you mean \"containerd\"?",
        ),
        ("[containerd]\nmode = \"remote\"", "containerd.mode"),
        (
            "[containerd.runtimes.kata]\ntype = \"io.containerd.kata.v2\"\nsandbox = \"vm\"",
            "sandbox",
        ),
        (
            "[[devices.groups]]\nvendor = \"a.com\"\ntype = \"b\"\npaths = [\"/dev/a\"]\npermision = \"r\"",
            "permision",
        ),
        ("[audit]\nto = \"syslog\"", "audit.to"),
        (
            "[exec]\nmax_per_container = \"many\"",
            "expected an integer",
        ),
        ("[exec]\nmax_per_container = 0", "at least 1"),
        ("log = 7", "expected a table"),
        ("[log", ""),
    ] {
        let etc = Etc::new(&format!("version = 1\n{text}\n"));
        let start = load_for_start(&etc.sources()).unwrap_err().to_string();
        assert!(start.contains(why), "{text}: {start}");
        let check = load(&etc.sources()).unwrap_err().to_string();
        assert_eq!(start, check, "{text}");
    }
    for text in ["", "version = 2\n"] {
        assert!(load_for_start(&Etc::new(text).sources()).is_err(), "{text}");
    }
}

#[test]
fn error_after_what_is_ignored_is_an_error() {
    let etc = Etc::new("version = 1\n[log]\nnew = 1\n[nomad]\nsocket_grop = \"x\"\n");
    let error = load_for_start(&etc.sources()).unwrap_err().to_string();
    assert!(error.contains("socket_grop"), "{error}");
}

#[test]
fn start_ignores_a_bounded_number() {
    let with = |number: usize| {
        let keys: String = (0..number).map(|key| format!("zzz{key} = 1\n")).collect();
        Etc::new(&format!("version = 1\n[exec]\n{keys}"))
    };
    let most = with(IGNORED_MAX);
    assert_eq!(ignored(&most, &most.sources()).1.len(), IGNORED_MAX);
    assert!(load_for_start(&with(IGNORED_MAX + 1).sources()).is_err());
}

#[test]
fn former_name_of_a_key_counts_with_a_warning() {
    const RENAMES: &[RenamedKey] = &[
        RenamedKey {
            key: "exec.most",
            to: "exec.max_per_container",
            since: "0.9.0",
        },
        RenamedKey {
            key: "record",
            to: "ledger",
            since: "0.9.0",
        },
    ];
    let text = |key: &str, value: &str| {
        let path = path_of(key);
        let source = LayerSource::Env {
            name: "V".to_owned(),
            path: path.clone(),
        };
        Layer::new(nest(&path, value), source)
    };
    let mut layers = vec![text("exec.most", "7"), text("record.overcommit", "off")];
    let warnings: Vec<String> = layers
        .iter_mut()
        .flat_map(|layer| layer.modernize(RENAMES))
        .collect();
    assert_eq!(
        warnings,
        [
            "environment variable V: exec.most: is named exec.max_per_container since version 0.9.0: rename the key",
            "environment variable V: record: is named ledger since version 0.9.0: rename the key",
        ]
    );
    let layers = Layers(layers);
    let config: Config = layers.merged().extract().unwrap();
    assert_eq!(config.exec.max_per_container, 7);
    assert_eq!(config.ledger.overcommit, crate::Overcommit::Off);
    assert_eq!(
        layers.origin_of(&path_of("ledger.overcommit")).to_string(),
        "environment variable V"
    );
    let mut both = Layer::new(
        toml::from_str("[exec]\nmost = 7\nmax_per_container = 8\n").unwrap(),
        LayerSource::Defaults,
    );
    let [warning] = both.modernize(RENAMES).try_into().unwrap();
    assert!(warning.contains("has no effect"), "{warning}");
    let config: Config = Layers(vec![both]).merged().extract().unwrap();
    assert_eq!(config.exec.max_per_container, 8);
}

#[test]
fn former_name_of_a_key_of_security_is_one_too() {
    const fn row(key: &'static str, to: &'static str) -> RenamedKey {
        RenamedKey {
            key,
            to,
            since: "0.9.0",
        }
    }
    const RENAMES: &[RenamedKey] = &[
        row("cri.seccomp", "cri.unset_seccomp"),
        row("log.audit", "audit.to"),
        row("http", "admin"),
        row("log.style", "log.format"),
        row("admin.style", "log.format"),
    ];
    let start = |text: &str| {
        let etc = Etc::new(&format!("version = 1\n{text}\n"));
        load_with(&etc.sources(), Unknown::Ignore, RENAMES)
    };
    for (text, why) in [
        ("[cri]\nseccomp = \"audit\"", ":3: cri.unset_seccomp: "),
        ("[log]\naudit = \"syslog\"", ":3: audit.to: "),
        ("[http]\nlater = 1", ":3: unknown key \"later\" in [admin]"),
    ] {
        let refused = start(text).unwrap_err().to_string();
        assert!(refused.contains(why), "{text}: {refused}");
    }
    for text in ["[log]\nstyle = \"xml\"", "[admin]\nstyle = \"xml\""] {
        let [ignored] = start(text).unwrap().ignored.try_into().unwrap();
        assert!(ignored.contains(":3: log.format: "), "{ignored}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// One unknown key in any section of a file with all documented keys.
    #[test]
    fn unknown_key_of_any_section_is_found_at_its_line(
        section in prop::sample::select(sections()),
        key in "[a-z]{3,12}_q",
    ) {
        let known: Vec<String> = documented().into_iter().map(|(key, _)| key).collect();
        let full = format!("{section}.{key}");
        prop_assume!(!known.contains(&full));
        let header = format!("[{section}]\n");
        let text = DOCUMENTED.replacen(&header, &format!("{header}{key} = 1\n"), 1);
        let line = text.lines().position(|line| line == format!("{key} = 1")).unwrap() + 1;
        let etc = Etc::new(&text);
        // A key of the labels of a swarm, or of a table of runtimes, would be no unknown one.
        let refused = load(&etc.sources()).unwrap_err().to_string();
        let place = format!("config.toml:{line}: unknown key \"{key}\" in [{section}]: ");
        prop_assert!(refused.contains(&place), "{}", refused);
        match load_for_start(&etc.sources()) {
            Ok(loaded) => {
                prop_assert_eq!(&loaded.ignored, &[format!("{refused} (ignored)")]);
                prop_assert_eq!(loaded.effective.config, Config::default());
            }
            Err(error) => prop_assert_eq!(error.to_string(), refused),
        }
    }
}
