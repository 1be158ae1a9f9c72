//! Tests of volumes with options of their driver, and of those that copy nothing from the image.

use super::files::{host, own};
use super::*;

#[test]
fn options_of_a_volume_driver_mount_what_the_operator_allows() {
    let volume = |options: &[(&str, &str)]| {
        let driver = map([("driver_config", map([("options", pairs(options))]))]);
        let mount = map([
            ("source", "data".into()),
            ("target", "/x".into()),
            ("volume_options", driver),
        ]);
        task([("mount", list([mount]))])
    };
    let allowing = |kinds: &[&str]| PluginConfig {
        volumes: VolumesConfig {
            enabled: true,
            driver_options: strings(kinds),
            ..VolumesConfig::default()
        },
        ..PluginConfig::default()
    };
    let bind = volume(&[("type", "none"), ("device", "/srv/a"), ("o", "bind,ro")]);
    let tmpfs = volume(&[
        ("type", "tmpfs"),
        ("device", "tmpfs"),
        ("o", "size=1m,uid=7"),
    ]);
    let path = host("/srv/a", MissingSource::Fail);
    let nfs = volume(&[("type", "nfs"), ("device", "nas:/a"), ("o", "soft,noatime")]);
    let export = MountSource::Nfs {
        export: "nas:/a".to_owned(),
        server: "nas".to_owned(),
        options: strings(&["soft"]),
    };
    let memory = MountSource::Tmpfs {
        size_bytes: 1 << 20,
        mode: 0o1777,
    };
    for (task, kind, source, readonly, options) in [
        (&bind, "bind", &path, true, strings(&["bind"])),
        (&tmpfs, "tmpfs", &memory, false, strings(&["uid=7"])),
        (&nfs, "nfs", &export, false, strings(&["noatime"])),
    ] {
        for allowed in [&[kind][..], &["*"], &["bind", "nfs", "tmpfs"]] {
            let made = own(plan(task, &session(allowing(allowed))).unwrap());
            assert_eq!(
                (&made[0].source, made[0].readonly, &made[0].options),
                (source, readonly, &options)
            );
        }
        let field = "mount[0].volume_options.driver_config.options";
        for other in [&["cifs"][..], &[], &["bin", "tmpf", "nf"]] {
            let why = format!(
                "{field}: {kind:?} is not allowed on this Nomad agent: have volumes.driver_options of the plugin's configuration name it"
            );
            refused_task(task, allowing(other), ErrorKind::InvalidArgument, &why);
        }
        let why = format!(
            "{field}: volumes are not enabled; cannot mount a {kind} by options of a driver"
        );
        refused_task(
            task,
            PluginConfig::default(),
            ErrorKind::InvalidArgument,
            &why,
        );
    }
}

#[test]
fn volume_copies_from_the_image_unless_it_says_not_to() {
    let copied = |request: &nomad::TaskConfig| {
        let made = own(plan(request, &session(generous())).unwrap());
        let MountSource::Volume { copied, .. } = made[0].source else {
            panic!("{made:?}")
        };
        copied
    };
    let mount = |more: (&str, Value)| {
        let mount = map([("source", "v".into()), ("target", "/x".into()), more]);
        task([("mount", list([mount]))])
    };
    let volumes = |entry: &str| {
        task([
            ("volumes", texts(&[entry])),
            ("volume_driver", "local".into()),
        ])
    };
    let options = |no_copy: bool| ("volume_options", map([("no_copy", no_copy.into())]));
    for (request, expected) in [
        (mount(("readonly", false.into())), true),
        (mount(options(false)), true),
        (mount(options(true)), false),
        (volumes("v:/x"), true),
        (volumes("v:/x:nocopy"), false),
        (volumes("v:/x:ro,nocopy"), false),
    ] {
        assert_eq!(copied(&request), expected);
    }
}
