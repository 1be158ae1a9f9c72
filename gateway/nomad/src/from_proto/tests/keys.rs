//! Tests of the keys by which errors of the backend are named.

use switchyard_core::{Error, SpecPart};

use super::*;

#[test]
fn what_the_backend_refuses_is_named_by_the_key_of_the_job() {
    let bind = |source: &str, target: &str| {
        map([
            ("type", "bind".into()),
            ("source", source.into()),
            ("target", target.into()),
        ])
    };
    let device = |path: &str| map([("host_path", path.into())]);
    let mut request = task([
        ("runtime", "kata".into()),
        ("group_add", texts(&["audio", "12", "no-such"])),
        (
            "security_opt",
            texts(&[
                "apparmor=first",
                "seccomp=/one.json",
                "label=type:my_t",
                "seccomp:/two.json",
                "no-new-privileges",
            ]),
        ),
        ("volumes", texts(&["local/a:/a"])),
        ("mount", list([bind("/srv", "/b")])),
        ("mounts", list([bind("/one", "/c"), bind("/none", "/d")])),
        ("tmpfs", texts(&["/t"])),
        (
            "devices",
            list([
                device("/dev/one"),
                device("acme.com/tpu=1"),
                device("/dev/two"),
                device("/dev/one"),
            ]),
        ),
    ]);
    request.user = "nobody".to_owned();
    request.mounts = vec![nomad::Mount {
        task_path: "/csi".to_owned(),
        host_path: "/mnt/csi".to_owned(),
        ..nomad::Mount::default()
    }];
    let plan = plan(&request, &session(generous())).unwrap();
    // Every task has four mounts of its own before those of the job.
    for (part, key) in [
        (SpecPart::Handler, "runtime"),
        (SpecPart::User, "task.user"),
        (SpecPart::Group(0), "group_add[0]"),
        (SpecPart::Group(2), "group_add[2]"),
        (SpecPart::Seccomp, "security_opt[3]"),
        (SpecPart::AppArmor, "security_opt[0]"),
        (SpecPart::Selinux, "security_opt[2]"),
        (SpecPart::Mount(0), "task.alloc_dir"),
        (SpecPart::Mount(4), "volumes[0]"),
        (SpecPart::Mount(5), "mount[0].source"),
        (SpecPart::Mount(6), "mounts[0].source"),
        (SpecPart::Mount(7), "mounts[1].source"),
        (SpecPart::Mount(8), "tmpfs[0]"),
        (SpecPart::Mount(9), "task.mounts[0]"),
        // The first one is replaced by the last, which has the same path in the task.
        (SpecPart::Device(0), "devices[2].host_path"),
        (SpecPart::Device(1), "devices[3].host_path"),
        (SpecPart::CdiDevice(0), "devices[1].host_path"),
    ] {
        let named = plan.named(Error::failed_precondition("it is not there").about(part));
        assert_eq!(
            (named.kind(), named.report()),
            (
                ErrorKind::FailedPrecondition,
                format!("{key}: it is not there")
            ),
            "{part:?}"
        );
    }
    for error in [
        Error::internal("x"),
        Error::internal("x").about(SpecPart::Mount(10)),
    ] {
        assert_eq!(plan.named(error).report(), "x");
    }
}
