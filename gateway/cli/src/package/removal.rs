//! The removal of the package.
//!
//! When the package is purged, the program is gone and the configuration may be. So its removal writes down where the
//! daemon has worked. `deploy/debian/common.sh` reads that file, adds the default directories, and finds the containers.

use std::collections::BTreeSet;
use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use switchyard_config::{self as config, Config, ContainerdMode, Sources};
use switchyard_daemon::daemon_record::DaemonRecord;
use switchyard_doctor::{LoadedUnit, LocalNode, UNIT};
use switchyard_linux::files::{self, Durable};
use switchyard_linux::report;

use super::error::PackageError;
use crate::admin_socket;
use crate::config_check::NextStart;
use crate::error::CliError;
use crate::nomad_links::{self, LinkError};
use crate::output::{print, print_error};
use crate::sources::own_sources;

/// The kinds of places.
const RUN: &str = "run";
const OF_STATE: &str = "state";
const CONTAINERD: &str = "containerd";

/// A directory in which the daemon has worked: its kind, and the path.
type Place = (&'static str, PathBuf);

/// Puts the links back that a removal has taken away.
pub(super) fn put_back(dir: &Path) -> Result<(), PackageError> {
    let back = nomad_links::put_back(&removed(dir))?;
    for path in &back.made {
        print(format!("switchyard: {} is back\n", path.display()))?;
    }
    for error in &back.failed {
        print_error(format!("switchyard: {}\n", report(error)))?;
    }
    if back.failed.is_empty() {
        Ok(())
    } else {
        Err(PackageError::LinksAway)
    }
}

/// Prepares the removal as far as possible. An invalid configuration, or a place that cannot be written down, is only
/// reported: the scripts know the default directories, and find containers by their shims.
pub(super) fn leave(dir: &Path) -> Result<(), PackageError> {
    let recorded = admin_socket::recorded();
    let socket = admin_socket::find(&own_sources());
    let places = places(&configurations(&socket)?, recorded.as_ref());
    let (lines, unwritten) = lines(&places);
    for path in unwritten {
        print_error(format!(
            "switchyard: {} is not written down for a purge, because its name has unusual characters\n",
            path.display()
        ))?;
    }
    if let Err(error) = write(dir, &lines) {
        print_error(format!(
            "switchyard: cannot write down in {} where the daemon works: {error}\n",
            dir.display()
        ))?;
    }
    remove_links(dir)
}

/// The configuration in force in the daemon at this socket, and that of its next start, as far as there are.
pub(crate) fn configurations(socket: &Path) -> Result<Vec<Config>, PackageError> {
    let mut found: Vec<Config> = switchyard_doctor::config_in_force(socket)
        .into_iter()
        .collect();
    let unit = LoadedUnit::read(&LocalNode::default(), UNIT).filter(LoadedUnit::is_loaded);
    match of_next_start(unit.as_ref(), own_sources()) {
        Ok(config) => found.push(config),
        Err(error) => print_error(format!(
            "switchyard: the directories of this configuration are not known: {}\n",
            report(&error)
        ))?,
    }
    Ok(found)
}

/// The configuration of the next start: of the unit, or of a daemon that gets the sources of this command.
fn of_next_start(unit: Option<&LoadedUnit>, own: Sources) -> Result<Config, CliError> {
    let sources = unit.map_or(Ok(own), NextStart::sources)?;
    Ok(config::load_for_start(&sources)?.effective.config)
}

/// The places of these configurations, and of the daemon that has written itself down. Pure.
fn places(configurations: &[Config], recorded: Option<&DaemonRecord>) -> BTreeSet<Place> {
    let mut found = BTreeSet::new();
    for config in configurations {
        found.insert((RUN, config.paths.run.clone()));
        found.insert((OF_STATE, config.paths.state.clone()));
        if config.containerd.mode == ContainerdMode::External {
            // It has its state beside its socket, or in a directory there.
            let beside = files::parent(&config.containerd.address);
            found.insert((CONTAINERD, beside.to_owned()));
            found.insert((CONTAINERD, beside.join("containerd")));
        }
    }
    let run = recorded.map(|record| files::parent(&record.admin_socket).to_owned());
    found.extend(run.map(|run| (RUN, run)));
    found
}

/// The lines of the file, and the paths that are in none because a shell would read them as something else. Pure.
fn lines(places: &BTreeSet<Place>) -> (String, Vec<&Path>) {
    let mut text = String::new();
    let mut unwritten = Vec::new();
    for (kind, path) in places {
        match path.to_str().filter(|path| is_plain(path)) {
            Some(path) => text.push_str(&format!("{kind} {path}\n")),
            None => unwritten.push(path.as_path()),
        }
    }
    (text, unwritten)
}

fn is_plain(path: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"/._-@:,=%".contains(&byte);
    path.starts_with('/') && path.bytes().all(is_plain)
}

fn write(dir: &Path, lines: &str) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    files::replace(
        &dir.join("places"),
        lines.as_bytes(),
        0o600,
        Durable::Yes,
        || {},
    )?;
    Ok(())
}

/// Removes the links of Nomad agents: in the directories of installations, and in those where the agents of this node look.
fn remove_links(dir: &Path) -> Result<(), PackageError> {
    let found = nomad_links::find_all(&dir.join("nomad-plugins"))?;
    let failed = nomad_links::take_away(&found.links, &removed(dir));
    let problems: Vec<&LinkError> = found.unseen.iter().chain(&failed).collect();
    for link in &found.links {
        print(format!(
            "switchyard: {} is removed until the package is installed again: a Nomad agent does not start with a link that leads nowhere\n",
            link.path.display()
        ))?;
    }
    for problem in &problems {
        print_error(format!("switchyard: {}\n", report(*problem)))?;
    }
    if problems.is_empty() {
        Ok(())
    } else {
        Err(PackageError::LinksLeft)
    }
}

/// The file of the links that were removed.
fn removed(dir: &Path) -> PathBuf {
    dir.join("nomad-plugins.removed")
}

#[cfg(test)]
mod tests {
    use switchyard_config::PathsConfig;

    use super::super::STATE;
    use super::*;

    #[track_caller]
    fn check(configurations: &[Config], recorded: Option<&Config>, expected: &str) {
        let record = recorded.map(DaemonRecord::of);
        let places = places(configurations, record.as_ref());
        let (text, unwritten) = lines(&places);
        assert_eq!(text, expected);
        assert!(unwritten.is_empty(), "{unwritten:?}");
    }

    #[test]
    fn places_are_those_in_force_of_the_next_start_and_of_the_record() {
        let mut external = Config::default();
        external.containerd.mode = ContainerdMode::External;
        external.containerd.address = "/run/k3s/containerd/containerd.sock".into();
        let mut moved = Config::default();
        moved.paths.state = "/data/switchyard".into();
        moved.paths.run = "/run/other".into();
        check(&[], None, "");
        check(&[], Some(&moved), "run /run/other\n");
        let beside = "containerd /run/k3s/containerd\ncontainerd /run/k3s/containerd/containerd\n";
        let standard = "run /run/switchyard\nstate /var/lib/switchyard\n";
        check(
            std::slice::from_ref(&external),
            None,
            &format!("{beside}{standard}"),
        );
        check(
            &[moved, external],
            None,
            &format!(
                "{beside}run /run/other\nrun /run/switchyard\nstate /data/switchyard\nstate /var/lib/switchyard\n"
            ),
        );
    }

    #[test]
    fn next_start_has_the_arguments_of_the_unit_and_without_a_unit_what_is_given() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("config.toml");
        std::fs::write(&file, "version = 1\n[paths]\nrun = \"/run/file\"\n").unwrap();
        let words = ["switchyard", "serve", "--config", file.to_str().unwrap()];
        let words = [&words[..], &["--set", "paths.state=/srv/state"]].concat();
        let unit = LoadedUnit {
            arguments: words.into_iter().map(str::to_owned).collect(),
            ..LoadedUnit::default()
        };
        let paths = of_next_start(Some(&unit), Sources::default())
            .unwrap()
            .paths;
        assert_eq!(paths.run, Path::new("/run/file"));
        assert_eq!(paths.state, Path::new("/srv/state"));
        let given = Sources {
            file: Some(file),
            ..Sources::default()
        };
        let paths = of_next_start(None, given).unwrap().paths;
        assert_eq!(paths.run, Path::new("/run/file"));
        assert_eq!(paths.state, PathsConfig::default().state);
    }

    #[test]
    fn path_that_a_shell_would_take_for_something_else_is_not_written() {
        let odd = [
            "/a b",
            "/a\nrun /x",
            "/a*",
            "/$x",
            "/a;b",
            "relative",
            "",
            "/ä",
            "/a|b",
            "/a(b",
        ];
        let places: BTreeSet<Place> = odd.map(|path| (RUN, PathBuf::from(path))).into();
        let (text, unwritten) = lines(&places);
        assert_eq!((text.as_str(), unwritten.len()), ("", odd.len()));
    }

    #[test]
    fn files_are_where_the_scripts_and_installations_look() {
        assert_eq!(Path::new(STATE), PathsConfig::default().state);
        assert_eq!(
            Path::new(STATE).join("nomad-plugins"),
            Path::new(nomad_links::RECORD)
        );
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("state");
        write(&state, "run /a\n").unwrap();
        write(&state, "run /b\n").unwrap();
        let text = std::fs::read_to_string(state.join("places")).unwrap();
        assert_eq!(text, "run /b\n");
    }
}
