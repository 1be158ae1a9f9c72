//! The node's networks as they are now, as plugins answer, and in a directory that hangs.

use std::fs;
use std::process::Command;
use std::sync::mpsc;

use futures::FutureExt as _;
use switchyard_core::ErrorKind;
use tokio::sync::oneshot;

use super::*;
use crate::network::pod_bridge::tests as pod_bridge;

mod status;

/// A directory with the network "net" of the plugin "real", which is installed.
fn networks(dir: &Path) -> NodeNetworks {
    fs::write(dir.join("real"), "").unwrap();
    let conf = dir.join("net.d");
    fs::create_dir(&conf).unwrap();
    fs::write(
        conf.join("10-net.conf"),
        r#"{"cniVersion":"1.0.0","name":"net","type":"real"}"#,
    )
    .unwrap();
    NodeNetworks::new(
        &conf,
        cni::Plugins::new([dir.to_owned()], cni::Limits::default()),
        None,
    )
}

#[tokio::test]
async fn look_finds_the_network_as_it_is_now() {
    let temp = tempfile::tempdir().unwrap();
    let networks = networks(temp.path());
    assert!(matches!(
        networks.known().condition,
        Condition::False { .. }
    ));
    let found = networks.look().await;
    assert_eq!(found.condition, Condition::True);
    assert!(found.config.contains(r#""name":"net""#), "{}", found.config);
    assert_eq!(networks.known(), found);
    fs::remove_file(temp.path().join("real")).unwrap();
    let Condition::False { reason, message } = networks.look().await.condition else {
        panic!("its plugin is gone")
    };
    assert_eq!(reason, "NetworkPluginNotReady");
    assert!(message.contains("plugin real"), "{message}");
    fs::remove_file(networks.dir().join("10-net.conf")).unwrap();
    let gone = networks.look().await;
    assert_eq!(gone.config, "");
    assert!(matches!(gone.condition, Condition::False { .. }));
    let error = networks.named("net").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::FailedPrecondition);
    assert_eq!(
        networks.default_network().await.unwrap_err().kind(),
        ErrorKind::Unavailable
    );
}

/// Installs the plugin "real", a script. It is written by another process: a program that this one starts meanwhile would keep the file
/// open for writing, and the kernel executes no such file.
fn install_plugin(dir: &Path, body: &str) {
    let write = "printf '#!/bin/sh\\n%s\\n' \"$1\" > real && chmod 755 real";
    let mut shell = Command::new("sh");
    let written = shell
        .args(["-c", write, "sh", body])
        .current_dir(dir)
        .status();
    assert!(written.unwrap().success());
}

#[tokio::test]
async fn plugins_that_have_status_say_whether_the_network_is_ready() {
    let refusal = |code: u32| format!("echo '{{\"code\":{code},\"msg\":\"no\"}}'; exit 1");
    for (version, body, is_ready) in [
        ("1.1.0", "exit 0".to_owned(), true),
        ("1.1.0", refusal(50), false),
        ("1.1.0", refusal(51), false),
        ("1.1.0", refusal(11), false),
        ("1.1.0", "exit 1".to_owned(), false),
        // It does not have the command.
        ("1.1.0", refusal(4), true),
        // The version does not have it: the plugin is not run.
        ("1.0.0", refusal(50), true),
    ] {
        let temp = tempfile::tempdir().unwrap();
        install_plugin(temp.path(), &format!("cat > /dev/null\n{body}"));
        let conf = temp.path().join("net.d");
        fs::create_dir(&conf).unwrap();
        let text = format!(r#"{{"cniVersion":"{version}","name":"net","type":"real"}}"#);
        fs::write(conf.join("10-net.conf"), text).unwrap();
        let plugins = cni::Plugins::new([temp.path().to_owned()], cni::Limits::default());
        let mut networks = NodeNetworks::new(&conf, plugins, None);
        // The shell of the script may be slow to start here.
        networks.status_limit = Duration::from_secs(120);
        let found = networks.look().await;
        assert_eq!(networks.known(), found);
        let is_found_ready = found.condition == Condition::True;
        assert_eq!(is_found_ready, is_ready, "{version} {body}: {found:?}");
        assert!(!found.config.is_empty(), "it is configured all the same");
        // Asked again at once, it is what the plugins have said.
        assert_eq!(networks.look().await, found);
    }
}

/// The clock stands still: nothing here waits for real time.
#[tokio::test(start_paused = true)]
async fn hung_directory_costs_one_thread_and_the_status_goes_on() {
    let temp = tempfile::tempdir().unwrap();
    let networks = networks(temp.path());
    let well = networks.look().await;
    let (began, begins) = oneshot::channel();
    let (answers, answer) = mpsc::channel::<()>();
    let mut first = Box::pin(networks.read(move |_| {
        began.send(()).expect("the test waits for it");
        let _ = answer.recv();
        Ok(())
    }));
    assert!((&mut first).now_or_never().is_none());
    begins.await.unwrap();
    // Nobody knows yet that it hangs.
    let mut waits = Box::pin(networks.default_network());
    let mut looks = Box::pin(networks.look());
    assert!((&mut waits).now_or_never().is_none() && (&mut looks).now_or_never().is_none());
    tokio::time::advance(STATUS_LIMIT).await;
    assert_eq!(looks.await, well, "the result of before is reported");
    assert!((&mut waits).now_or_never().is_none());

    tokio::time::advance(READ_LIMIT).await;
    let named = networks.dir().display().to_string();
    for error in [first.await.unwrap_err(), waits.await.unwrap_err()] {
        let text = error.report();
        assert_eq!(error.kind(), ErrorKind::Unavailable);
        assert!(text.contains(&named) && text.contains("hang"), "{text}");
    }
    // From now on nobody waits.
    let refused = networks
        .named("net")
        .now_or_never()
        .expect("it does not wait")
        .unwrap_err();
    assert!(refused.report().contains(&named), "{}", refused.report());
    let hung = networks.look().now_or_never().expect("it does not wait");
    let Condition::False { reason: _, message } = &hung.condition else {
        panic!("{hung:?}")
    };
    assert!(
        message.contains("still hangs") && message.contains(&named),
        "{message}"
    );
    assert_eq!(hung.config, well.config);

    drop(answers);
    let again = loop {
        match networks.look().await {
            back if back.condition == Condition::True => break back,
            // The thread returns in its own time.
            _ => tokio::task::yield_now().await,
        }
    };
    assert_eq!(again, well);
    assert_eq!(networks.default_network().await.unwrap().name, "net");
}

#[tokio::test]
async fn hung_directory_holds_up_nobody_who_has_the_bridge_of_pods() {
    let temp = tempfile::tempdir().unwrap();
    let network = pod_bridge::network(&["198.19.243.0/24"]);
    let pods = Arc::new(pod_bridge::bridge(&network, &[]).await);
    let plugins = cni::Plugins::new([temp.path().to_owned()], cni::Limits::default());
    let mut networks = NodeNetworks::new(temp.path(), plugins, Some(pods));
    networks.status_limit = Duration::from_secs(120);
    let (answers, answer) = mpsc::channel::<()>();
    let mut hangs = Box::pin(networks.read(move |_| {
        let _ = answer.recv();
        Ok(())
    }));
    assert!((&mut hangs).now_or_never().is_none());
    let found = networks.look().await;
    assert_eq!(networks.known(), found);
    let Condition::False { reason: _, message } = &found.condition else {
        panic!("the plugins are not there: {found:?}")
    };
    assert!(message.contains("plugin"), "{message}");
    let list = networks.default_network().await.unwrap();
    assert_eq!(list.name, "swt-pods");
    drop(answers);
}
