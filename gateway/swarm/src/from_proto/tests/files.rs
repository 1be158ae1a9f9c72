//! Secrets and configs.

use std::sync::Arc;

use super::*;
use crate::plan::TaskFile;
use crate::sample_tasks::{config, secret, secret_reference, task_id};

fn config_reference(id: &str, name: &str) -> swarm::ConfigReference {
    let file = swarm::FileTarget {
        name: name.to_owned(),
        ..Default::default()
    };
    swarm::ConfigReference {
        config_id: id.to_owned(),
        config_name: format!("name of {id}"),
        target: Some(swarm::config_reference::Target::File(file)),
    }
}

fn dependencies() -> Dependencies {
    let mut dependencies = Dependencies::default();
    dependencies.put_secret(Arc::new(secret("s1", b"hunter2", false)));
    dependencies.put_secret(Arc::new(secret(
        "s2",
        b"pw={{secret `db`}} {{uppercase}}",
        true,
    )));
    dependencies.put_config(Arc::new(config(
        "c1",
        b"{{.Service.Name}} {{secret `db`}} {{env \"A\"}}",
        true,
    )));
    dependencies
}

#[track_caller]
fn files(container: swarm::ContainerSpec) -> Vec<TaskFile> {
    plan(&task(1, container), &node(), &dependencies())
        .unwrap()
        .files
}

#[track_caller]
fn refused(container: swarm::ContainerSpec) -> Error {
    plan(&task(1, container), &node(), &dependencies()).unwrap_err()
}

#[test]
fn secrets_and_configs_become_files_where_docker_puts_them() {
    let mut given = container();
    given.secrets = vec![
        secret_reference("s1", "db"),
        secret_reference("s1", "/etc/db/password"),
    ];
    given.configs = vec![config_reference("c1", "site.conf")];
    given.env = strings(&["A={{.Task.Slot}}"]);
    let made = files(given);
    let shown: Vec<(&str, &[u8], u32)> = made
        .iter()
        .map(|file| {
            (
                file.destination.to_str().unwrap(),
                file.content.as_ref(),
                file.mode,
            )
        })
        .collect();
    assert_eq!(
        shown,
        [
            ("/run/secrets/db", &b"hunter2"[..], 0o444),
            ("/etc/db/password", b"hunter2", 0o444),
            ("/site.conf", b"web hunter2 {{.Task.Slot}}", 0),
        ]
    );
    assert!(!format!("{made:?}").contains("hunter2"), "{made:?}");
}

#[test]
fn template_is_expanded_once_for_all_references() {
    let mut given = container();
    given.secrets = vec![secret_reference("s1", "db")];
    given.env = strings(&["A={{.Task.Slot}}"]);
    given.configs = (0..100)
        .map(|number| config_reference("c1", &format!("site-{number}.conf")))
        .collect();
    let made = files(given);
    // The secret comes first: the template is made of it.
    let configs = &made[1..];
    assert_eq!(
        (configs.len(), configs[0].content.as_ref()),
        (100, &b"web hunter2 {{.Task.Slot}}"[..])
    );
    assert!(
        configs
            .iter()
            .all(|file| Arc::ptr_eq(&file.content, &configs[0].content))
    );
}

#[test]
fn owner_and_mode_are_those_of_the_reference() {
    let with = |uid: &str, gid: &str, mode| {
        let file = swarm::FileTarget {
            name: "db".into(),
            uid: uid.into(),
            gid: gid.into(),
            mode,
        };
        let mut reference = secret_reference("s1", "db");
        reference.target = Some(swarm::secret_reference::Target::File(file));
        swarm::ContainerSpec {
            secrets: vec![reference],
            ..container()
        }
    };
    let file = files(with("1000", "", 0o440)).remove(0);
    assert_eq!((file.uid, file.gid, file.mode), (1000, 0, 0o440));
    // The bits of Go's FileMode.
    assert_eq!(
        files(with("", "", (1 << 23) | (1 << 20) | 0o755))[0].mode,
        0o5755
    );
    assert_eq!(files(with("", "", 0o4755))[0].mode, 0o4755);
    assert_eq!(
        refused(with("", "", 1 << 31)).report(),
        "container.secrets[0].file.mode: 20000000000 (octal) is not the mode of a file"
    );
    assert_eq!(
        refused(with("root", "", 0)).report(),
        "container.secrets[0].file.uid: \"root\" is no number of an id"
    );
}

#[test]
fn missing_secret_is_refused_by_name() {
    let error = refused(swarm::ContainerSpec {
        secrets: vec![secret_reference("s9", "db")],
        ..container()
    });
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error
            .report()
            .starts_with("secret reference \"name of s9\" (\"s9\") not found"),
        "{}",
        error.report()
    );
    let error = refused(swarm::ContainerSpec {
        configs: vec![config_reference("c9", "x")],
        ..container()
    });
    assert!(
        error.report().starts_with("config reference "),
        "{}",
        error.report()
    );
}

#[test]
fn target_cannot_leave_its_directory_nor_be_taken_twice() {
    for name in ["", "..", "../x", "a/../..", "a/", ".", "/", "/../"] {
        let given = swarm::ContainerSpec {
            secrets: vec![secret_reference("s1", name)],
            ..container()
        };
        let error = refused(given).report();
        assert!(
            error.starts_with("container.secrets[0].file.name: "),
            "{name:?}: {error}"
        );
    }
    let twice = vec![
        secret_reference("s1", "a"),
        secret_reference("s1", "/run/secrets/a"),
    ];
    assert_eq!(
        refused(swarm::ContainerSpec {
            secrets: twice,
            ..container()
        })
        .report(),
        "container.secrets[1]: Duplicate mount point: /run/secrets/a"
    );
}

#[test]
fn failing_template_of_a_secret_shows_no_word_of_it() {
    let given = swarm::ContainerSpec {
        secrets: vec![
            secret_reference("s1", "db"),
            secret_reference("s2", "other"),
        ],
        ..container()
    };
    let error = refused(given).report();
    assert!(
        error.starts_with("container.secrets[1]: it cannot be expanded: template, byte "),
        "{error}"
    );
    assert!(!error.contains("uppercase"), "{error}");
}

#[test]
fn unknown_template_language_is_refused() {
    let mut dependencies = dependencies();
    let mut other = config("c2", b"x", true);
    other
        .spec
        .as_mut()
        .unwrap()
        .templating
        .as_mut()
        .unwrap()
        .name = "jinja".into();
    dependencies.put_config(Arc::new(other));
    let given = swarm::ContainerSpec {
        configs: vec![config_reference("c2", "x")],
        ..container()
    };
    let error = plan(&task(1, given), &node(), &dependencies).unwrap_err();
    assert_eq!(
        error.report(),
        "container.configs[0]: there is no template language \"jinja\""
    );
}

#[test]
fn templates_are_bounded_by_what_they_are_made_of_too() {
    let mut dependencies = Dependencies::default();
    // A comment: nothing comes of it.
    let template = [b"{{/*", vec![b'x'; (1 << 20) - 16].as_slice(), b"*/}}"].concat();
    for number in 0..70 {
        dependencies.put_config(Arc::new(config(&format!("c{number}"), &template, true)));
    }
    let given = |count: usize| swarm::ContainerSpec {
        configs: (0..count)
            .map(|n| config_reference(&format!("c{n}"), &format!("f{n}")))
            .collect(),
        ..container()
    };
    let made = plan(&task(1, given(60)), &node(), &dependencies)
        .unwrap()
        .files;
    assert!(made.iter().all(|file| file.content.is_empty()));
    let error = plan(&task(1, given(70)), &node(), &dependencies).unwrap_err();
    let why =
        "container.configs[64]: the templates of the task have more than 67108864 bytes with it";
    assert_eq!(error.report(), why);
}

#[test]
fn task_gets_those_it_refers_to_and_no_others() {
    let mut all = dependencies();
    all.put_secret(Arc::new(secret(
        &format!("s2.{}", task_id(1)),
        b"own",
        false,
    )));
    let given = swarm::ContainerSpec {
        secrets: vec![secret_reference("s2", "a"), secret_reference("s9", "b")],
        ..container()
    };
    let own = all.of_task(&task(1, given.clone())).unwrap();
    assert_eq!(own.secret("s2", &task_id(1)).unwrap().data, b"own");
    assert!(own.secret("s1", "").is_none() && own.config("c1").is_none() && !own.has_templates());
    assert!(
        all.of_task(&task(2, given)).unwrap().has_templates(),
        "s2 itself is a template"
    );
    let many = swarm::ContainerSpec {
        secrets: vec![secret_reference("s1", "a"); 1025],
        ..container()
    };
    assert!(
        all.of_task(&task(1, many))
            .unwrap_err()
            .report()
            .contains("may have 1024")
    );
}
