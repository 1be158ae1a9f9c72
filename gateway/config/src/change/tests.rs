//! Tests of comparisons: what a reload applies, what waits, and what is refused.

use switchyard_operator_api::Effect;

use crate::tests::{Etc, env, flag};

use crate::{Loaded, Reload, load};

const BASE: &str = "version = 1\n[log]\nlevel = \"warn\"\n[cri]\nexec_drain_seconds = 20\n\
     [containerd.runtimes.kata]\ntype = \"io.containerd.kata.v2\"\n";

fn loaded(etc: &Etc) -> Loaded {
    load(&etc.sources()).unwrap()
}

/// The reload after the file has become `text`, and the keys of its changes with their effects.
fn changed(before: &str, text: &str) -> (Reload, Vec<(String, Effect)>) {
    let etc = Etc::new(before);
    let present = loaded(&etc).effective;
    etc.write(text);
    let reload = present.reload(&loaded(&etc).effective).unwrap();
    let keys = reload
        .changes
        .iter()
        .map(|change| (change.key.clone(), change.effect))
        .collect();
    (reload, keys)
}

#[test]
fn the_same_files_change_nothing() {
    let (reload, changes) = changed(BASE, &format!("# a comment\n{BASE}"));
    assert_eq!(changes, []);
    let etc = Etc::new(BASE);
    assert_eq!(reload.effective.config, loaded(&etc).effective.config);
}

#[test]
fn reloadable_keys_are_applied_and_others_wait_with_their_old_values() {
    let text = BASE
        .replace("20", "30")
        .replace("[log]", "[paths]\nrun = \"/run/other\"\n[log]");
    let (reload, changes) = changed(BASE, &text);
    let expected = [
        ("cri.exec_drain_seconds".to_owned(), Effect::Reload),
        ("paths.run".to_owned(), Effect::EmptyNode),
    ];
    assert_eq!(changes, expected);
    let config = &reload.effective.config;
    assert_eq!(
        (config.cri.exec_drain_seconds, config.paths.run.to_str()),
        (30, Some("/run/switchyard"))
    );
    let drain = &reload.changes[0];
    assert_eq!(
        (drain.before.as_deref(), drain.after.as_deref()),
        (Some("20"), Some("30"))
    );
    assert!(
        drain.location.ends_with("config.toml:7"),
        "{}",
        drain.location
    );
    let dump = reload.effective.dump(true);
    assert!(
        dump.contains("run = \"/run/switchyard\"  # default\n"),
        "{dump}"
    );
    let line = dump
        .lines()
        .find(|line| line.starts_with("exec_drain_seconds"))
        .unwrap();
    assert!(
        line.starts_with("exec_drain_seconds = 30  # ") && line.ends_with("config.toml:7"),
        "{line}"
    );
}

#[test]
fn a_removed_key_has_its_default_again() {
    let (reload, changes) = changed(BASE, &BASE.replace("[cri]\nexec_drain_seconds = 20\n", ""));
    assert_eq!(
        changes,
        [("cri.exec_drain_seconds".to_owned(), Effect::Reload)]
    );
    assert_eq!(reload.effective.config.cri.exec_drain_seconds, 15);
    assert_eq!(reload.changes[0].location, "default");
}

#[test]
fn a_runtime_is_added_as_a_whole_but_changed_and_removed_after_a_restart() {
    let with = format!("{BASE}[containerd.runtimes.youki]\ntype = \"io.containerd.runc.v2\"\n");
    let youki = "containerd.runtimes.youki".to_owned();
    let (added, changes) = changed(BASE, &with);
    assert_eq!(changes, [(youki, Effect::Reload)]);
    assert!(
        added
            .effective
            .config
            .containerd
            .runtimes
            .contains_key("youki")
    );
    let (altered, changes) = changed(BASE, &BASE.replace("kata.v2", "runc.v2"));
    assert_eq!(
        changes,
        [("containerd.runtimes.kata".to_owned(), Effect::Restart)]
    );
    let runtime = altered.effective.config.containerd.runtimes["kata"].clone();
    assert_eq!(runtime.type_, "io.containerd.kata.v2");
    let kata = BASE.find("[containerd").unwrap();
    let (removed, changes) = changed(BASE, &BASE[..kata]);
    assert_eq!(
        changes,
        [("containerd.runtimes.kata".to_owned(), Effect::Restart)]
    );
    assert!(
        removed
            .effective
            .config
            .containerd
            .runtimes
            .contains_key("kata")
    );
}

#[test]
fn a_default_runtime_waits_while_the_runtime_itself_is_added() {
    let kata = &BASE[BASE.find("[containerd").unwrap()..];
    let text = format!("version = 1\n[containerd]\ndefault_runtime = \"kata\"\n{kata}");
    let (reload, changes) = changed("version = 1\n", &text);
    let expected = [
        ("containerd.default_runtime".to_owned(), Effect::Restart),
        ("containerd.runtimes.kata".to_owned(), Effect::Reload),
    ];
    assert_eq!(changes, expected);
    let containerd = &reload.effective.config.containerd;
    assert_eq!(containerd.default_runtime, "runc");
    assert!(containerd.runtimes.contains_key("kata"));
}

#[test]
fn a_value_that_a_variable_or_a_flag_overrides_is_told_and_changes_nothing() {
    let etc = Etc::new(BASE);
    let mut sources = etc.sources();
    sources.env = vec![env("SWITCHYARD_LOG__LEVEL", "debug"), env("PATH", "/bin")];
    sources.flags = vec![flag("cri.exec_drain_seconds", "20")];
    let present = load(&sources).unwrap();
    assert_eq!(present.sources.env, [env("SWITCHYARD_LOG__LEVEL", "debug")]);
    etc.write(&BASE.replace("warn", "error"));
    let new = load(&sources).unwrap();
    assert!(
        present
            .effective
            .reload(&new.effective)
            .unwrap()
            .changes
            .is_empty()
    );
    let [told] = &*new.overridden else {
        panic!("{:?}", new.overridden)
    };
    assert_eq!(
        (&*told.key, &*told.by),
        ("log.level", "environment variable SWITCHYARD_LOG__LEVEL")
    );
    assert!(
        told.location.ends_with("config.toml:3"),
        "{}",
        told.location
    );
}
