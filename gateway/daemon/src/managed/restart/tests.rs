//! Tests of restarts on request.

use std::fs;
use std::path::Path;

use super::*;

/// The input of a process whose configuration has this content.
fn start(dir: &Path, record: Option<&Path>, text: &str) -> ServiceStart {
    let file = dir.join("config.toml");
    fs::write(&file, text).unwrap();
    let sources = Sources {
        file: Some(file),
        ..Sources::default()
    };
    ServiceStart::new(
        PublishedRecord::at(record, &config::Config::default()),
        sources,
    )
}

#[tokio::test]
async fn configuration_must_be_valid_only_where_the_daemon_has_written_no_record() {
    let dir = tempfile::tempdir().unwrap();
    for invalid in ["version = 1\n[cri]\nenabled = 1\n", "[[[\n"] {
        let recorded = start(dir.path(), Some(dir.path()), invalid);
        assert!(recorded.check("logkeeper").await.is_ok());
        let refused = start(dir.path(), None, invalid).check("logkeeper").await;
        let Err(RestartError::Configuration { name, why }) = refused else {
            panic!("{refused:?}");
        };
        assert_eq!(name, "logkeeper");
        assert!(why.contains("config.toml:"), "{why}");
    }
    let valid = start(dir.path(), None, "version = 1\n");
    assert!(valid.check("logkeeper").await.is_ok());
}

#[test]
fn version_is_the_second_word_of_a_description() {
    assert_eq!(version_in("containerd 1.7.2"), Some("1.7.2"));
    assert_eq!(version_in("logkeeper 0.2.0 protocol 1"), Some("0.2.0"));
    assert_eq!(version_in("logkeeper protocol 1"), None);
    assert_eq!(version_in(""), None);
}

#[tokio::test]
async fn a_process_of_no_service_is_not_restarted() {
    let process = ProcessId::of(1).unwrap();
    let up = State::Up {
        process,
        adopted: true,
        version: "logkeeper 0.1.0 protocol 1".into(),
        is_configuration_current: None,
    };
    let (sender, state) = watch::channel(State::Down("is not there".into()));
    let dir = tempfile::tempdir().unwrap();
    let keeper = Restarter::service("logkeeper", state, start(dir.path(), None, "version = 1\n"));
    assert!(matches!(
        keeper.restart().await,
        Err(RestartError::Absent("logkeeper"))
    ));
    assert_eq!(keeper.version(), None);
    sender.send_replace(up);
    assert_eq!(keeper.version().as_deref(), Some("0.1.0"));
    assert!(!keeper.take_requested_end(process));
    // The first process is in no service.
    assert!(matches!(
        keeper.restart().await,
        Err(RestartError::External { pid: 1, .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn restart_is_answered_when_the_next_process_keeps_the_listeners() {
    let process = ProcessId::of(1).unwrap();
    let (_, state) = watch::channel(State::Starting);
    let (kept, place) = watch::channel(KeptListeners::Nowhere);
    let (restarter, mut requests) = supervised("logkeeper", state);
    let restarter = restarter.with_listeners(place);
    let mut restart = restarter.restart();
    assert!(futures::poll!(&mut restart).is_pending());
    requests.starting();
    requests.serves(process);
    for not_there in [KeptListeners::Nowhere, KeptListeners::In(2)] {
        kept.send_replace(not_there);
        assert!(futures::poll!(&mut restart).is_pending(), "{not_there:?}");
    }
    kept.send_replace(KeptListeners::In(1));
    assert_eq!(restart.await.unwrap().after, 1);

    // One that never gets them is not reported as one that has them, and one of a former version is not waited for.
    for (place, is_ok) in [
        (KeptListeners::Nowhere, false),
        (KeptListeners::Unsupported, true),
    ] {
        kept.send_replace(place);
        let mut restart = restarter.restart();
        assert!(futures::poll!(&mut restart).is_pending());
        requests.starting();
        requests.serves(process);
        assert!(futures::poll!(&mut restart).is_pending(), "{place:?}");
        kept.send_replace(place);
        let done = restart.await;
        assert_eq!(done.is_ok(), is_ok, "{place:?}: {done:?}");
        assert!(is_ok || matches!(done, Err(RestartError::Listeners { pid: 1, .. })));
    }
}
