//! Tests of what counts before plugins have answered STATUS, and if they do not.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::*;

#[test]
fn until_plugins_answer_with_a_configuration_what_was_known_counts() {
    let refusing = || not_ready("no".to_owned());
    let answer = |config: &str, fault: Option<&str>| StatusAnswer {
        config: config.to_owned(),
        at: Instant::now(),
        fault: fault.map(str::to_owned),
    };
    for (is_asked, answer, before, expected) in [
        (true, None, refusing(), refusing()),
        (true, None, Condition::True, Condition::True),
        (true, Some(answer("now", None)), refusing(), Condition::True),
        (
            true,
            Some(answer("now", Some("no"))),
            Condition::True,
            refusing(),
        ),
        // They have answered with another configuration.
        (true, Some(answer("then", None)), refusing(), refusing()),
        (
            true,
            Some(answer("then", Some("no"))),
            Condition::True,
            Condition::True,
        ),
        // They are not asked: it is installed.
        (false, None, refusing(), Condition::True),
        (
            false,
            Some(answer("now", Some("no"))),
            refusing(),
            Condition::True,
        ),
    ] {
        let found = KnownNetwork {
            condition: Condition::True,
            config: "now".to_owned(),
        };
        let case = format!("{is_asked} {answer:?} {before:?}");
        let found = found.answered(is_asked, answer.as_ref(), before);
        assert_eq!(found.condition, expected, "{case}");
    }
}

/// Counts the runs of plugins.
#[derive(Debug, Default)]
struct Runs(AtomicUsize);

impl cni::PluginObserver for Runs {
    fn began(&self, _plugin: &str, _verb: cni::Verb) -> cni::RunEnd {
        self.0.fetch_add(1, Ordering::Relaxed);
        Box::new(|_| ())
    }
}

/// The clock stands still: nothing here waits for real time.
#[tokio::test(start_paused = true)]
async fn network_is_not_ready_before_plugins_are_asked_and_those_that_hang_are_asked_seldom() {
    let temp = tempfile::tempdir().unwrap();
    let conf = temp.path().join("net.d");
    fs::create_dir(&conf).unwrap();
    install_plugin(temp.path(), "exec sleep 1000");
    let text = r#"{"cniVersion":"1.1.0","name":"net","type":"real"}"#;
    fs::write(conf.join("10-net.conf"), text).unwrap();
    let runs = Arc::new(Runs::default());
    let count = || runs.0.load(Ordering::Relaxed);
    let plugins = cni::Plugins::new([temp.path().to_owned()], cni::Limits::default());
    let observer: Arc<dyn cni::PluginObserver> = runs.clone();
    let networks = NodeNetworks::new(&conf, plugins.observed(observer), None);
    let mut first = Box::pin(networks.look());
    while count() == 0 {
        assert!((&mut first).now_or_never().is_none());
        tokio::task::yield_now().await;
    }
    let meanwhile = networks.known();
    assert_ne!(meanwhile.condition, Condition::True);
    assert!(!meanwhile.config.is_empty(), "it is configured");
    // It says nothing, and is installed. Who asks meanwhile hears that too.
    let (first, second) = tokio::join!(first, networks.look());
    assert_eq!(first.condition, Condition::True);
    assert_eq!(second.condition, Condition::True);
    for _ in 0..3 {
        assert_eq!(networks.look().await.condition, Condition::True);
    }
    assert_eq!(count(), 1);
    tokio::time::advance(STATUS_AGE).await;
    assert_eq!(networks.look().await.condition, Condition::True);
    assert_eq!(count(), 2);
}
