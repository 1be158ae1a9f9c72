//! Tests of records, and of the agents that they name.

use super::*;

#[test]
fn records_of_the_first_version_are_read_and_written() {
    let task = Record {
        id: "3a7c/web/0123abcd".into(),
        task_name: "web".into(),
        alloc_id: "3a7c".into(),
        alloc_dir: "/opt/nomad/alloc/3a7c".into(),
        node_id: "node".into(),
        digest: (0..32).collect(),
        ports: BTreeMap::from([("http".into(), 80)]),
        own_network: true,
        namespace: "default".into(),
        job: "shop".into(),
        group: "front".into(),
        image: "busybox:1".into(),
        ..Record::default()
    };
    let network = Record::network("3a7c", "web", Agent::new("/opt/nomad/alloc/3a7c").as_ref());
    for (record, golden) in [
        (task, &include_bytes!("../golden/task-1.bin")[..]),
        (network, &include_bytes!("../golden/network-1.bin")[..]),
    ] {
        assert_eq!(record.encode(), golden);
        let read = record::decode::<Record>(golden).expect("it is of this version");
        assert_eq!(read, record);
        let agent = read.agent().expect("it has a directory");
        assert_eq!(agent.dir(), Path::new("/opt/nomad/alloc"));
    }
}

fn request() -> nomad::TaskConfig {
    nomad::TaskConfig {
        id: "3a7c/web/0123abcd".into(),
        name: "web".into(),
        alloc_id: "3a7c".into(),
        alloc_dir: "/opt/nomad/alloc/3a7c".into(),
        job_name: "shop".into(),
        job_id: "shop".into(),
        namespace: "default".into(),
        env: BTreeMap::from([("VAULT_TOKEN".to_owned(), "hunter2".to_owned())]),
        ..Default::default()
    }
}

#[test]
fn all_starts_of_a_task_share_a_name() {
    assert_eq!(task_key("3a7c/web/0123abcd"), "3a7c/web");
    assert_eq!(task_key("3a7c/web/89efABCD"), "3a7c/web");
    for alone in [
        "3a7c",
        "3a7c/web",
        "web/0123abcd",
        "3a7c/web/0123abcx",
        "3a7c/web/0123abcd0",
        "",
    ] {
        assert_eq!(task_key(alone), alone);
    }
}

#[test]
fn task_record_round_trips_without_environment_values() {
    let record = Record::new(&request());
    let now = SystemTime::UNIX_EPOCH;
    let meta = meta(&record, &network_meta("3a7c", "", None, now), now);
    assert_eq!(
        (Record::of(&meta), meta.name.as_str()),
        (record, "3a7c/web/0123abcd")
    );
    assert!(!meta.record.windows(7).any(|part| part == b"hunter2"));
}

#[test]
fn stored_names_are_bounded_and_cut_between_characters() {
    let long = format!("a{}", "é".repeat(NAME_MAX));
    let record = Record::new(&nomad::TaskConfig {
        job_id: long.clone(),
        namespace: long.clone(),
        task_group_name: long.clone(),
        ..request()
    });
    for stored in [&record.job, &record.namespace, &record.group] {
        assert_eq!(stored.len(), NAME_MAX - 1);
        assert!(long.starts_with(stored.as_str()));
    }
}

#[test]
fn record_equality_matches_request_equality() {
    assert_eq!(Record::new(&request()), Record::new(&request()));
    let other = nomad::TaskConfig {
        user: "root".into(),
        ..request()
    };
    assert_ne!(Record::new(&request()), Record::new(&other));
}

#[test]
fn record_that_cannot_be_decoded_is_refused_and_one_that_is_absent_is_not() {
    let record = Record::new(&request());
    let now = SystemTime::UNIX_EPOCH;
    let mut meta = meta(&record, &network_meta("3a7c", "", None, now), now);
    assert_eq!(check_request(&meta), Ok(()));
    meta.record[0] = 9;
    assert_eq!(check_request(&meta), Err("it is of version 9".to_owned()));
    meta.record = vec![1, 10, 9];
    assert!(check_request(&meta).is_err());
    meta.record.clear();
    assert_eq!(check_request(&meta), Ok(()));
    assert_eq!(Record::of(&meta), Record::default());
}

#[test]
fn agents_are_identified_by_allocation_directory() {
    let one = Agent::new("/opt/a/alloc/1");
    assert_eq!(one, Agent::new("/opt/a/alloc/2"));
    assert_ne!(one, Agent::new("/opt/b/alloc/1"));
    assert_eq!(Agent::new(""), None);
    assert_eq!(Agent::new("alloc"), None);
}

#[test]
fn network_record_names_its_agent_if_known() {
    let agent = Agent::new("/opt/nomad/alloc/other");
    let meta = network_meta("3a7c", "web", agent.as_ref(), SystemTime::UNIX_EPOCH);
    let record = Record::of(&meta);
    assert_eq!(
        (
            record.agent(),
            record.alloc_id.as_str(),
            record.hostname.as_str()
        ),
        (agent, "3a7c", "web")
    );
    let meta = network_meta("3a7c", "web", None, SystemTime::UNIX_EPOCH);
    assert_eq!(Record::of(&meta).agent(), None);
}

#[test]
fn request_without_id_or_with_a_network_id_is_rejected() {
    assert!(check(&request()).is_ok());
    for wrong in [
        nomad::TaskConfig {
            id: String::new(),
            ..request()
        },
        nomad::TaskConfig {
            name: String::new(),
            ..request()
        },
        nomad::TaskConfig {
            alloc_id: String::new(),
            ..request()
        },
        nomad::TaskConfig {
            id: "network/3a7c".into(),
            ..request()
        },
        nomad::TaskConfig {
            id: "a/b/\0".into(),
            ..request()
        },
        nomad::TaskConfig {
            id: "a".repeat(1025),
            ..request()
        },
        nomad::TaskConfig {
            name: "we\nb".into(),
            ..request()
        },
        nomad::TaskConfig {
            alloc_id: "\u{7f}".into(),
            ..request()
        },
        nomad::TaskConfig {
            alloc_id: "../../3a7c".into(),
            ..request()
        },
        nomad::TaskConfig {
            alloc_id: "..".into(),
            ..request()
        },
        nomad::TaskConfig {
            name: ".".into(),
            ..request()
        },
        nomad::TaskConfig {
            name: "web/".into(),
            ..request()
        },
    ] {
        assert_eq!(
            check(&wrong).map_err(|error| error.kind()),
            Err(switchyard_core::ErrorKind::InvalidArgument)
        );
    }
}

#[test]
fn id_of_a_task_begins_with_its_allocation_and_its_name() {
    let parts = |id| (allocation_of(id), task_name(id));
    assert_eq!(parts("3a7c/web/0123abcd"), ("3a7c", "web"));
    // Whatever a later version gives.
    assert_eq!(parts("3a7c"), ("3a7c", ""));
    assert_eq!(parts(""), ("", ""));
}
