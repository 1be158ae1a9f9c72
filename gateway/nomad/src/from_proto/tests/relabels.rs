//! Tests of the SELinux labels that the sources of mounts get.

use super::files::own;
use super::*;

#[test]
fn binds_get_the_label_that_the_job_names_else_that_of_the_operator() {
    use Relabel::{Keep, Private, PrivateByDefault, Shared, SharedByDefault};
    for (by_operator, volume, expected) in [
        ("", "a:/a", [Keep, Keep]),
        ("", "a:/a:ro,z", [Keep, Shared]),
        ("", "a:/a:Z,rslave", [Keep, Private]),
        ("z", "a:/a", [SharedByDefault, SharedByDefault]),
        ("Z", "a:/a", [PrivateByDefault, PrivateByDefault]),
        ("z", "a:/a:Z", [SharedByDefault, Private]),
        ("Z", "a:/a:z", [PrivateByDefault, Shared]),
    ] {
        let volumes = VolumesConfig {
            enabled: true,
            selinuxlabel: by_operator.to_owned(),
            ..VolumesConfig::default()
        };
        let config = PluginConfig {
            volumes,
            ..PluginConfig::default()
        };
        let made = planned_for(
            config,
            [("volumes", texts(&[volume])), ("tmpfs", texts(&["/t"]))],
        );
        let [of_directories, of_volume] = expected;
        let labels: Vec<_> = made
            .task
            .mounts
            .iter()
            .map(|mount| mount.selinux_relabel)
            .collect();
        let directories = std::iter::repeat_n(of_directories, 4);
        let expected: Vec<_> = directories.chain([of_volume, Keep]).collect();
        assert_eq!(labels, expected, "{by_operator:?} {volume}");
    }
}

#[test]
fn agent_mounts_get_the_label_that_the_agent_names() {
    for (label, expected) in [
        ("", Relabel::Keep),
        ("z", Relabel::Shared),
        ("Z", Relabel::Private),
    ] {
        let mount = nomad::Mount {
            task_path: "/csi".to_owned(),
            host_path: "/mnt/csi".to_owned(),
            selinux_label: label.to_owned(),
            ..nomad::Mount::default()
        };
        let with = nomad::TaskConfig {
            mounts: vec![mount],
            ..task([])
        };
        let made = plan(&with, &session(PluginConfig::default())).unwrap();
        assert_eq!(own(made)[0].selinux_relabel, expected, "{label:?}");
    }
}
