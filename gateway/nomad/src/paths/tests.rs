//! Tests of path resolution, with all kinds of links in an allocation directory.

use std::fs;
use std::os::unix::fs::symlink;

use switchyard_core::ErrorKind;
use switchyard_core::spec::CgroupPlacement;
use switchyard_proto::nomad::drivers::proto as nomad;

use super::*;
use crate::configs::{session, task, texts};
use crate::plugin_config::{PluginConfig, VolumesConfig};
use crate::preparation;

/// An allocation directory with a task, as an agent creates it, and a directory beside it that must not be
/// reachable.
struct Alloc {
    dir: tempfile::TempDir,
}

impl Alloc {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for below in [
            "alloc/alloc/logs",
            "alloc/web/local",
            "alloc/web/secrets",
            "outside",
        ] {
            fs::create_dir_all(dir.path().join(below)).unwrap();
        }
        fs::write(dir.path().join("outside/secret"), "secret").unwrap();
        Self { dir }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir
            .path()
            .canonicalize()
            .unwrap()
            .join("alloc")
            .join(below)
    }

    fn outside(&self) -> PathBuf {
        self.dir.path().join("outside")
    }

    fn task(&self, volumes: &[&str]) -> nomad::TaskConfig {
        let alloc_dir = self.path("").display().to_string();
        nomad::TaskConfig {
            alloc_dir,
            ..task([("volumes", texts(volumes))])
        }
    }

    /// The resolved volumes of a task.
    fn settled(&self, volumes: &[&str]) -> Result<Vec<PathBuf>> {
        let plan = preparation::prepare(&self.task(volumes), &session(PluginConfig::default()))?;
        let own = ["/alloc", "/local", "/secrets"].map(PathBuf::from);
        let more = plan
            .task
            .mounts
            .into_iter()
            .filter(|mount| mount.destination.components().count() == 2)
            .filter(|mount| !own.contains(&mount.destination));
        let sources = more.map(|mount| {
            let MountSource::Beneath { root, path } = mount.source else {
                panic!("a source is not settled")
            };
            assert!(path.is_relative());
            root.join(path)
        });
        Ok(sources.collect())
    }

    #[track_caller]
    fn refused(&self, volume: &str, why: &str) {
        let error = self.settled(&[volume]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidArgument);
        let text = error.to_string();
        assert!(
            text.starts_with("volumes[0]: ") && text.ends_with(why),
            "{text}"
        );
    }
}

#[test]
fn mount_source_resolves_its_links() {
    let alloc = Alloc::new();
    fs::create_dir(alloc.path("web/local/real")).unwrap();
    fs::write(alloc.path("web/local/file"), "").unwrap();
    symlink("real", alloc.path("web/local/link")).unwrap();
    symlink("../../alloc", alloc.path("web/local/shared")).unwrap();
    let paths = alloc
        .settled(&[
            "local/link:/a",
            "local/file:/b",
            "local/shared:/c",
            "../alloc:/d",
        ])
        .unwrap();
    let expected =
        ["web/local/real", "web/local/file", "alloc", "alloc"].map(|path| alloc.path(path));
    assert_eq!(paths, expected);
}

#[test]
fn link_out_of_the_allocation_is_rejected() {
    let alloc = Alloc::new();
    symlink("../../../outside", alloc.path("web/local/up")).unwrap();
    symlink(alloc.outside(), alloc.path("web/local/absolute")).unwrap();
    symlink("/", alloc.path("web/local/root")).unwrap();
    // Leads inside again, but through outside.
    symlink(alloc.path("web/local"), alloc.path("web/local/round")).unwrap();
    let out = "a link in it leads out of the allocation's directory";
    for link in [
        "up",
        "absolute",
        "root",
        "round",
        "up/secret",
        "root/etc",
        "up/new",
    ] {
        alloc.refused(&format!("local/{link}:/x"), out);
    }
    symlink("circle", alloc.path("web/local/circle")).unwrap();
    alloc.refused("local/circle:/x", "its links lead in a circle");
    assert_eq!(
        fs::read_dir(alloc.outside()).unwrap().count(),
        1,
        "nothing is made outside"
    );
}

#[test]
fn links_are_checked_even_with_host_volumes_allowed() {
    let alloc = Alloc::new();
    symlink(alloc.outside(), alloc.path("web/local/planted")).unwrap();
    let volumes = VolumesConfig {
        enabled: true,
        ..VolumesConfig::default()
    };
    let session = session(PluginConfig {
        volumes,
        ..PluginConfig::default()
    });
    let error = preparation::prepare(&alloc.task(&["local/planted:/x"]), &session).unwrap_err();
    assert!(
        error
            .to_string()
            .ends_with("a link in it leads out of the allocation's directory"),
        "{error}"
    );
    // Paths that the job itself names may be outside.
    let outside = format!("{}:/x", alloc.outside().display());
    let plan = preparation::prepare(&alloc.task(&[&outside]), &session).unwrap();
    let mut sources = plan.task.mounts.iter().map(|mount| &mount.source);
    assert!(sources.any(
        |source| matches!(source, MountSource::Host { path, .. } if *path == alloc.outside())
    ));
}

#[test]
fn log_directory_is_read_only_in_every_mount() {
    let alloc = Alloc::new();
    symlink("../../alloc/logs", alloc.path("web/local/logs")).unwrap();
    fs::create_dir(alloc.path("alloc/logs/old")).unwrap();
    let volumes = VolumesConfig {
        enabled: true,
        ..VolumesConfig::default()
    };
    let session = session(PluginConfig {
        volumes,
        ..PluginConfig::default()
    });
    let asked = [
        "../alloc:/shared",
        "local/logs:/l",
        "../alloc/logs/old:/o",
        "..:/all",
        "local:/mine",
    ];
    let plan = preparation::prepare(&alloc.task(&asked), &session).unwrap();
    let of_alloc = plan
        .task
        .mounts
        .iter()
        .filter(|mount| matches!(mount.source, MountSource::Beneath { .. }));
    let (readonly, writable): (Vec<&Mount>, Vec<_>) = of_alloc.partition(|mount| mount.readonly);
    let places = |mounts: Vec<&Mount>| {
        let mut places: Vec<_> = mounts
            .iter()
            .map(|mount| mount.destination.display().to_string())
            .collect();
        places.sort_unstable();
        places
    };
    assert_eq!(
        places(readonly),
        ["/all/alloc/logs", "/alloc/logs", "/l", "/o", "/shared/logs"]
    );
    assert_eq!(
        places(writable),
        ["/all", "/alloc", "/local", "/mine", "/secrets", "/shared"]
    );
}

#[test]
fn only_volume_directories_are_created() {
    let alloc = Alloc::new();
    let made = alloc.path("web/local/a/b");
    for _ in 0..2 {
        assert_eq!(alloc.settled(&["local/a/b:/x"]).unwrap(), [made.as_path()]);
    }
    assert!(made.is_dir());
    fs::write(alloc.path("web/local/file"), "").unwrap();
    alloc.refused("local/file/below:/x", "it cannot be opened");
    symlink("nowhere", alloc.path("web/local/dangling")).unwrap();
    alloc.refused("local/dangling:/x", "it is not there");
    fs::remove_dir_all(alloc.path("web/secrets")).unwrap();
    let error = alloc.settled(&[]).unwrap_err().to_string();
    assert!(
        error.starts_with("task.alloc_dir: ")
            && error.ends_with("/web/secrets cannot be mounted: it is not there"),
        "{error}"
    );
}

#[test]
fn task_cannot_redirect_its_own_directories() {
    let alloc = Alloc::new();
    for (dir, below) in [("alloc/logs", "logs"), ("web/secrets", "secrets")] {
        fs::remove_dir_all(alloc.path(dir)).unwrap();
        symlink(alloc.outside(), alloc.path(dir)).unwrap();
        let error = alloc.settled(&[]).unwrap_err().to_string();
        assert!(
            error.contains(below) && error.ends_with("leads out of the allocation's directory"),
            "{error}"
        );
        fs::remove_file(alloc.path(dir)).unwrap();
        fs::create_dir(alloc.path(dir)).unwrap();
    }
}

#[test]
fn gateway_cgroup_is_used_when_the_agents_is_missing() {
    let dir = tempfile::tempdir().unwrap();
    let theirs = CgroupPlacement::Leaf {
        path: "/nomad.slice/a1.web.scope".into(),
        cpuset: None,
    };
    let of = |group: &Path| {
        let linux = nomad::LinuxResources {
            cpuset_cgroup: group.display().to_string(),
            ..Default::default()
        };
        let resources = nomad::Resources {
            linux_resources: Some(linux),
            ..Default::default()
        };
        let mut plan =
            crate::from_proto::plan(&task([]), &session(PluginConfig::default())).unwrap();
        plan.task.cgroup = Some(theirs.clone());
        resolve_cgroup(
            &mut plan,
            &nomad::TaskConfig {
                resources: Some(resources),
                ..task([])
            },
        );
        (plan.task.cgroup, plan.warnings)
    };
    assert_eq!(of(dir.path()), (Some(theirs.clone()), Vec::new()));
    assert_eq!(
        of(Path::new("")),
        (Some(theirs.clone()), Vec::new()),
        "it names none"
    );
    let missing = dir.path().join("a1.web.scope");
    let warning = format!(
        "the agent's cgroup {} is not there: the task is in one of the gateway's own",
        missing.display()
    );
    assert_eq!(of(&missing), (None, vec![warning]));
}
