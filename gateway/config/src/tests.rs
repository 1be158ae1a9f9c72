//! Tests of the layers, their order and the messages about faults.

use std::fs;
use std::path::Path;
use std::path::PathBuf;

use switchyard_linux::report;
use tempfile::TempDir;

use super::*;

mod devices;
pub(super) mod documented;
mod listeners;
mod registry;

pub(super) struct Etc {
    dir: TempDir,
}

impl Etc {
    pub(super) fn new(text: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("config.d")).unwrap();
        fs::write(dir.path().join("config.toml"), text).unwrap();
        Self { dir }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("config.toml")
    }

    pub(super) fn drop_in(&self, name: &str, text: &str) -> PathBuf {
        let path = self.dir.path().join("config.d").join(name);
        fs::write(&path, text).unwrap();
        path
    }

    pub(super) fn write(&self, text: &str) {
        fs::write(self.file(), text).unwrap();
    }

    pub(super) fn sources(&self) -> Sources {
        Sources {
            file: Some(self.file()),
            ..Sources::default()
        }
    }
}

pub(super) fn env(name: &str, value: &str) -> (String, String) {
    (name.into(), value.into())
}

pub(super) fn flag(key: &str, value: &str) -> Flag {
    Flag {
        flag: format!("--set {key}"),
        key: key.into(),
        value: value.into(),
    }
}

/// The message for a configuration, with the directory of the file left out.
#[track_caller]
fn message(text: &str) -> String {
    let etc = Etc::new(text);
    let error = load(&etc.sources()).unwrap_err();
    error
        .to_string()
        .replace(&format!("{}/", etc.dir.path().display()), "")
}

/// The warnings about a configuration, with the directory of its files left out.
pub(super) fn warnings(etc: &Etc, loaded: &Loaded) -> Vec<String> {
    let dir = format!("{}/", etc.dir.path().display());
    loaded
        .warnings
        .iter()
        .map(|warning| warning.replace(&dir, ""))
        .collect()
}

#[test]
fn documented_defaults_match_the_code() {
    let documented: Config = toml::from_str(DOCUMENTED).unwrap();
    assert_eq!(documented, Config::default());
}

#[test]
fn commented_out_documented_keys_are_valid() {
    let uncommented: String = DOCUMENTED
        .lines()
        .map(|line| match line.strip_prefix("# ") {
            Some(rest)
                if rest.split(" = ").count() == 2
                    && !rest.split(" = ").next().unwrap().contains(' ') =>
            {
                rest
            }
            _ => line,
        })
        .fold(String::new(), |text, line| text + line + "\n");
    assert_ne!(uncommented, DOCUMENTED);
    let config: Config = toml::from_str(&uncommented).unwrap();
    assert_eq!(config.cri.socket_group.as_deref(), Some("switchyard"));
    assert_eq!(
        config.cri.streaming.url.as_deref(),
        Some("http://127.0.0.1:10010")
    );
    assert_eq!(
        config.logkeeper.state_dir.as_deref(),
        Some(Path::new("/run/switchyard/logkeeper/state"))
    );
}

#[test]
fn keys_in_image_limit_errors_are_documented() {
    let documented: toml::Table = toml::from_str(DOCUMENTED).unwrap();
    for key in switchyard_containerd::config::IMAGE_LIMITS {
        let (section, name) = key.split_once('.').unwrap();
        assert!(
            documented[section].as_table().unwrap().contains_key(name),
            "{key}"
        );
    }
}

#[test]
fn advisories_are_ignored_by_program_and_version() {
    let etc = Etc::new(
        "version = 1\n[advisories]\nignore = [\"runc 1.1.5+ds1\", \"containerd 1.6.20~ds1\"]\n",
    );
    assert_eq!(
        load(&etc.sources())
            .unwrap()
            .effective
            .config
            .advisories
            .ignore
            .len(),
        2
    );
    for wrong in ["runc", "runc ", "CVE-2024-21626", "runk 1.0", "runc 1.1 5"] {
        let error = message(&format!(
            "version = 1\n[advisories]\nignore = [{wrong:?}]\n"
        ));
        assert!(
            error.starts_with("config.toml:3: ") && error.contains("not a program and version"),
            "{error}"
        );
    }
}

#[test]
fn drop_in_that_is_no_regular_file_is_refused_instead_of_awaited() {
    let etc = Etc::new("version = 1\n");
    let fifo = etc.drop_in("10.toml", "");
    fs::remove_file(&fifo).unwrap();
    nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let error = report(&load(&etc.sources()).unwrap_err());
    assert!(
        error.contains("10.toml") && error.contains("no regular file"),
        "{error}"
    );
}

#[test]
fn places_that_no_two_parts_can_share_and_paths_that_go_up_are_refused() {
    for (text, key) in [
        (
            "[nomad]\nenabled = true\nsocket = \"/run/switchyard/cri.sock\"",
            "nomad.socket",
        ),
        (
            "[cri]\nsocket = \"/run/switchyard/admin.sock\"",
            "cri.socket",
        ),
        (
            "[cri.streaming]\nlisten = \"127.0.0.1:9640\"",
            "cri.streaming.listen",
        ),
        (
            "[admin]\nmetrics_listen = \"127.0.0.1:9640\"",
            "admin.metrics_listen",
        ),
        ("[paths]\nstate = \"/run/switchyard\"", "paths.state"),
        (
            "[cgroup]\ndefault_parent = \"../x\"",
            "cgroup.default_parent",
        ),
        ("[audit]\nfile = \"relative.log\"", "audit.file"),
    ] {
        let error = load(&Etc::new(&format!("version = 1\n{text}\n")).sources()).unwrap_err();
        assert!(error.to_string().contains(key), "{key}: {error}");
    }
}

#[test]
fn later_configuration_layers_override() {
    let etc = Etc::new(
        "version = 1\n[log]\nlevel = \"warn\"\nformat = \"json\"\n[paths]\nrun = \"/run/a\"\n",
    );
    etc.drop_in(
        "20.toml",
        "version = 1\n[paths]\nrun = \"/run/c\"\nstate = \"/var/c\"\n",
    );
    etc.drop_in("10.toml", "version = 1\n[paths]\nrun = \"/run/b\"\n");
    etc.drop_in("ignored.conf", "what is this");
    let mut sources = etc.sources();
    sources.env = vec![
        env("SWITCHYARD_PATHS__STATE", "/var/d"),
        env("SWITCHYARD_LOG__LEVEL", "debug"),
        env("SWITCHYARD_CONTAINERD__RUNTIMES__RUNC__BINARY", "/x/runc"),
        env("SWITCHYARD_SOCKET", "not configuration"),
        env("HOME", "/root"),
    ];
    sources.flags = vec![flag("log.level", "trace")];
    let config = load(&sources).unwrap().effective.config;
    assert_eq!(
        config.paths,
        PathsConfig {
            state: "/var/d".into(),
            run: "/run/c".into()
        }
    );
    assert_eq!(
        config.log,
        LogConfig {
            level: "trace".into(),
            format: LogFormat::Json
        }
    );
    assert_eq!(config.containerd.runtimes["runc"].binary, "/x/runc");
    assert_eq!(
        config.containerd.runtimes["crun"],
        Containerd::default().runtimes["crun"]
    );
    assert_eq!(config.network, NetworkConfig::default());
}

#[test]
fn named_file_must_exist_and_default_one_may_be_missing() {
    let sources = Sources {
        file: Some("/nowhere/at/all.toml".into()),
        ..Sources::default()
    };
    assert_eq!(
        load(&sources).unwrap_err().to_string(),
        "cannot read configuration /nowhere/at/all.toml"
    );
    if !Path::new(DEFAULT_FILE).exists() {
        assert_eq!(
            load(&Sources::default()).unwrap().effective.config,
            Config::default()
        );
    }
}

#[test]
fn unknown_key_is_named_with_line_and_suggestion() {
    assert_eq!(
        message("version = 1\n\n[containerd]\nnamespace = \"x\"\nsnapshoter = \"native\"\n"),
        "config.toml:5: unknown key \"snapshoter\" in [containerd]: did you mean \"snapshotter\"?"
    );
    assert_eq!(
        message("version = 1\n[contianerd]\nmode = \"external\"\n"),
        "config.toml:2: unknown key \"contianerd\" at the top level: did you mean \"containerd\"?"
    );
    assert_eq!(
        message(
            "version = 1\n[containerd.runtimes.kata]\ntype = \"io.containerd.kata.v2\"\nhypervisor = 1\n"
        ),
        "config.toml:4: unknown key \"hypervisor\" in [containerd.runtimes.kata]: \
         known keys are type, binary, snapshotter, sandbox, privileged_without_host_devices, update_annotations"
    );
}

#[test]
fn unknown_key_of_drop_in_variable_or_flag_is_named() {
    let etc = Etc::new("version = 1\n");
    let path = etc.drop_in(
        "50.toml",
        "version = 1\nadmin = { lisen = \"127.0.0.1:1\" }\n",
    );
    let error = load(&etc.sources()).unwrap_err().to_string();
    let wanted = format!(
        "{}:2: unknown key \"lisen\" in [admin]: did you mean \"listen\"?",
        path.display()
    );
    assert_eq!(error, wanted);

    let etc = Etc::new("version = 1\n");
    let sources = Sources {
        env: vec![env("SWITCHYARD_CRI__ENABELD", "true")],
        ..etc.sources()
    };
    assert_eq!(
        load(&sources).unwrap_err().to_string(),
        "environment variable SWITCHYARD_CRI__ENABELD: unknown key \"enabeld\" in [cri]: did you mean \"enabled\"?"
    );
    let sources = Sources {
        env: Vec::new(),
        flags: vec![flag("cri.port", "1")],
        ..sources
    };
    assert_eq!(
        load(&sources).unwrap_err().to_string(),
        "flag --set cri.port: unknown key \"port\" in [cri]: known keys are \
         enabled, socket, socket_group, network, runtime_name, unprivileged_ports, unprivileged_icmp, unset_seccomp, exec_drain_seconds, \
         max_connections, max_streams, streaming"
    );
}

#[test]
fn wrong_type_is_named_with_line_and_expected_type() {
    assert_eq!(
        message("version = 1\n[cri]\nenabled = \"yes\"\n"),
        "config.toml:3: cri.enabled: expected true or false, found the string \"yes\""
    );
    assert_eq!(
        message("version = 1\n[managed]\noom_score = true\n"),
        "config.toml:3: managed.oom_score: expected an integer, found the boolean true"
    );
    assert_eq!(
        message("version = 1\n[network]\nbin_dirs = [\n  \"/a\",\n  7,\n]\n"),
        "config.toml:5: network.bin_dirs.1: expected a string (a path), found the integer 7"
    );
    assert_eq!(
        message("version = 1\n[containerd]\nmode = \"internal\"\n"),
        "config.toml:3: containerd.mode: expected one of \"managed\", \"external\", found \"internal\""
    );
    assert_eq!(
        message("version = 1\nlog = \"debug\"\n"),
        "config.toml:2: log: expected a table, found the string \"debug\""
    );
}

#[test]
fn invalid_values_are_rejected_with_their_line() {
    assert_eq!(
        message("version = 1\n[containerd]\ndefault_runtime = \"kata\"\n"),
        "config.toml:3: containerd.default_runtime: \"kata\" is not one of the configured runtimes: crun, runc"
    );
    assert_eq!(
        message("version = 1\n[images]\nmax_config_bytes = 20000000\n"),
        "config.toml:3: images.max_config_bytes: 20000000 is more than containerd accepts in one message: at most 15728640"
    );
    assert_eq!(
        message(
            "version = 1\n[containerd.runtimes.runc]\nupdate_annotations = [\"a.example/*\", \"run.oci.handler\"]\n"
        ),
        "config.toml:3: containerd.runtimes.runc.update_annotations: \"run.oci.handler\" is neither a key nor a prefix of keys \
         followed by \"*\", or it is one that containerd, shims and OCI runtimes reserve"
    );
    assert_eq!(
        message("version = 1\n[paths]\nstate = \"var\"\n"),
        "config.toml:3: paths.state: \"var\" is not an absolute path without `..`"
    );
    assert_eq!(
        message("version = 1\n[devices]\nlease_minutes = 0\n"),
        "config.toml:3: devices.lease_minutes: must be at least 1"
    );
    assert_eq!(
        message("version = 1\n[devices.kubelet]\nplugin_watcher_directory = \"plugins\"\n"),
        "config.toml:3: devices.kubelet.plugin_watcher_directory: \"plugins\" is not an absolute path without `..`"
    );
    let long = "x".repeat(120);
    let kubelets = "/var/lib/kubelet/device-plugins";
    let error = message(&format!(
        "version = 1\n[devices.host]\ndirectory = \"{kubelets}\"\n"
    ));
    assert!(
        error.contains("config.toml:3: devices.host.directory: /var/lib/kubelet"),
        "{error}"
    );
    let resource =
        "version = 1\n[[devices.host.resources]]\nname = \"acme.com/gpu\"\nquota = { nomad = 1 }\n";
    let error = message(&format!(
        "{resource}[[devices.groups]]\nvendor = \"acme.com\"\ntype = \"gpu\"\npaths = [\"/dev/a\"]\n"
    ));
    assert!(
        error.contains("devices.host.resources: name: acme.com/gpu is a group of devices.groups"),
        "{error}"
    );
    let error = message(&resource.replace("nomad", "docker"));
    assert!(
        error.contains(
            "devices.host.resources: acme.com/gpu: quota: \"docker\" is no owner: kubernetes"
        ),
        "{error}"
    );
    assert!(message(&resource.replace("quota", "quotas")).contains("did you mean \"quota\"?"));
    let error = message(&format!(
        "version = 1\n[devices.kubelet]\ndirectory = \"/{long}\"\n"
    ));
    assert!(
        error.starts_with("config.toml:3: devices.kubelet.directory: the directory has 121 bytes"),
        "{error}"
    );
    assert!(
        message(&format!("version = 1\n[paths]\nrun = \"/{long}\"\n"))
            .contains("the kernel allows 107")
    );
    assert!(
        message("version = 1\n[log]\nlevel = \"switchyard=loud\"\n")
            .starts_with("config.toml:3: log.level: ")
    );
    assert!(
        message("version = 1\n[containerd]\nnamespace = \"a..b\"\n")
            .contains("is no containerd namespace")
    );
}

#[test]
fn every_configuration_file_needs_a_version() {
    assert_eq!(
        message("[log]\nlevel = \"info\"\n"),
        "config.toml: the top key \"version\" is missing: add `version = 1` as the first line"
    );
    assert_eq!(
        message("# note\nversion = 2\n"),
        "config.toml:2: version 2 is not read by this build: it reads version 1"
    );
    assert!(message("version = 1\n[log\n").starts_with("config.toml:2: "));
}

#[test]
fn environment_values_are_toml_or_bare_words() {
    let etc = Etc::new("version = 1\n");
    let sources = Sources {
        file: Some(etc.file()),
        env: vec![
            env("SWITCHYARD_NETWORK__BIN_DIRS", "[\"/a\", \"/b\"]"),
            env("SWITCHYARD_CRI__ENABLED", "false"),
            env("SWITCHYARD_ADMIN__LISTEN", "127.0.0.1:0"),
            env("SWITCHYARD_CRI__SOCKET_GROUP", "\"0\""),
        ],
        flags: Vec::new(),
    };
    let config = load(&sources).unwrap().effective.config;
    assert_eq!(
        config.network.bin_dirs,
        [PathBuf::from("/a"), PathBuf::from("/b")]
    );
    assert!(!config.cri.enabled);
    assert_eq!(config.admin.listen.port(), 0);
    assert_eq!(config.cri.socket_group.as_deref(), Some("0"));
}

#[test]
fn dump_round_trips_and_names_origins() {
    let etc = Etc::new(
        "version = 1\n[containerd.runtimes.\"kata.fc\"]\ntype = \"io.containerd.kata-fc.v2\"\n",
    );
    let mut sources = etc.sources();
    sources.env = vec![env("SWITCHYARD_LOG__LEVEL", "debug")];
    let loaded = load(&sources).unwrap();
    let back: Config = toml::from_str(&loaded.effective.dump(true)).unwrap();
    assert_eq!(back, loaded.effective.config);
    let dump = loaded.effective.dump(true);
    let line = |start: &str| {
        dump.lines()
            .find(|line| line.starts_with(start))
            .unwrap()
            .to_owned()
    };
    assert_eq!(
        line("level"),
        "level = \"debug\"  # environment variable SWITCHYARD_LOG__LEVEL"
    );
    assert_eq!(line("state"), "state = \"/var/lib/switchyard\"  # default");
    assert_eq!(
        line("type = \"io.containerd.kata"),
        format!(
            "type = \"io.containerd.kata-fc.v2\"  # {}:3",
            etc.file().display()
        )
    );
}
