//! Attachments are undone from their journal files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::json;

use super::*;
use crate::journal::Saved;
use crate::testing::{Bench, attach_saved, attachment, list, result};

fn left_in(dir: &Path) -> usize {
    fs::read_dir(dir).unwrap().count()
}

fn journal(bench: &Bench) -> PathBuf {
    fs::create_dir_all(bench.path("journal")).unwrap();
    bench.path("journal/c0ffee-eth0.json")
}

#[tokio::test]
async fn journal_precedes_the_plugin_and_then_has_its_result() {
    let bench = Bench::new();
    let path = journal(&bench);
    let copy = bench.path("during.json");
    bench.plugin(
        "one",
        &format!(
            "[ $CNI_COMMAND != ADD ] || {{ cp '{}' '{}'; echo '{}'; }}",
            path.display(),
            copy.display(),
            result("1.0.0", "10.0.0.2/24")
        ),
    );
    let network = bench.network(&list("1.0.0", &["one"]));
    let made = attach_saved(&network, &path, &attachment()).await.unwrap();

    let during = Saved::read(&copy).unwrap().unwrap();
    assert_eq!(during.result(&copy).unwrap(), None);
    let after = Saved::read(&path).unwrap().unwrap();
    assert_eq!(after.result(&path).unwrap(), Some(made));
    assert_eq!(after.attachment(), attachment());
    assert_eq!(after.list(&path).unwrap().plugins, network.list().plugins);
    assert_eq!(
        fs::metadata(&path).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(left_in(&bench.path("journal")), 1);
}

#[tokio::test]
async fn del_needs_only_the_journal() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    bench.good("two", "10.0.0.2/24");
    let conf = json!({"cniVersion": "1.0.0", "name": "net", "plugins": [
        {"type": "one", "own": [1, 2]}, {"type": "two", "capabilities": {"mac": true}}]});
    let mut requested = attachment();
    requested.args.push(("K".to_owned(), "v".to_owned()));
    requested.capabilities.mac = Some("c2:11:22:33:44:55".to_owned());
    let made = attach_saved(&bench.network(&conf), &path, &requested)
        .await
        .unwrap();

    // The network object does not exist any more, as after a crash of the daemon.
    del_saved(&path, &bench.plugins(), Some(Path::new("/run/netns/x")))
        .await
        .unwrap();
    assert_eq!(bench.order(), ["ADD one", "ADD two", "DEL two", "DEL one"]);
    for plugin in ["one", "two"] {
        let mut add = bench.stdin(plugin, "ADD");
        let mut del = bench.stdin(plugin, "DEL");
        assert_eq!(del["prevResult"], made.raw);
        for request in [&mut add, &mut del] {
            request.as_object_mut().unwrap().remove("prevResult");
        }
        assert_eq!(add, del, "{plugin} must get on DEL what it got on ADD");
        for name in [
            "CNI_CONTAINERID",
            "CNI_NETNS",
            "CNI_IFNAME",
            "CNI_ARGS",
            "CNI_PATH",
        ] {
            assert_eq!(
                bench.env(plugin, "ADD", name),
                bench.env(plugin, "DEL", name),
                "{name}"
            );
        }
    }
    assert_eq!(left_in(&bench.path("journal")), 0);
}

#[tokio::test]
async fn del_is_idempotent_and_cleans_up_after_a_crash() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    // A kill between the creation of the file and the write: no plugin has run yet.
    fs::write(&path, "").unwrap();
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert_eq!(left_in(&bench.path("journal")), 0);
    assert!(bench.order().is_empty());
}

/// The script of a plugin whose ADD signals its start by a file, and then hangs.
const HANGS: &str = "[ $CNI_COMMAND != ADD ] || { touch started; exec sleep 300; }";

/// Attaches until the hanging plugin has started, and drops the call then.
async fn cut_off_once_started(bench: &Bench, network: &Network, path: &Path) {
    let attachment = attachment();
    let started = bench.path("log/started");
    let running = async {
        while !started.exists() {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::select! {
        made = attach_saved(network, path, &attachment) => panic!("a hanging plugin answered: {made:?}"),
        () = running => {}
    }
}

#[tokio::test]
async fn add_interrupted_by_kill_can_be_rolled_back() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.plugin("one", HANGS);
    let network = bench.network(&list("1.0.0", &["one"]));
    cut_off_once_started(&bench, &network, &path).await;
    assert_eq!(
        Saved::read(&path).unwrap().unwrap().result(&path).unwrap(),
        None
    );
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert_eq!(bench.order(), ["ADD one", "DEL one"]);
    assert_eq!(bench.env("one", "DEL", "CNI_NETNS").as_deref(), Some(""));
    assert_eq!(left_in(&bench.path("journal")), 0);
}

#[tokio::test]
async fn chain_interrupted_by_kill_is_rolled_back_with_earlier_results() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    bench.good("two", "10.0.0.3/24");
    bench.plugin("three", HANGS);
    let network = bench.network(&list("1.0.0", &["one", "two", "three"]));
    cut_off_once_started(&bench, &network, &path).await;
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert_eq!(
        bench.order(),
        [
            "ADD one",
            "ADD two",
            "ADD three",
            "DEL three",
            "DEL two",
            "DEL one"
        ]
    );
    for plugin in ["one", "two", "three"] {
        assert_eq!(
            bench.stdin(plugin, "DEL")["prevResult"],
            result("1.0.0", "10.0.0.3/24"),
            "{plugin}"
        );
    }
    assert_eq!(left_in(&bench.path("journal")), 0);
}

#[tokio::test]
async fn journal_is_kept_until_del_succeeds() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.plugin("one", "exit 1");
    let network = bench.network(&list("1.0.0", &["one"]));
    let error = attach_saved(&network, &path, &attachment())
        .await
        .unwrap_err();
    assert!(error.left_something());
    assert!(del_saved(&path, &bench.plugins(), None).await.is_err());
    assert_eq!(
        Saved::read(&path).unwrap().unwrap().result(&path).unwrap(),
        None
    );
    let error = attach_saved(&network, &path, &attachment())
        .await
        .unwrap_err();
    assert!(matches!(error, Error::JournalExists { .. }), "{error}");

    bench.good("one", "10.0.0.2/24");
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert!(!path.exists());
}

#[tokio::test]
async fn rolled_back_add_leaves_no_journal() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.plugin("one", "[ $CNI_COMMAND = DEL ]");
    let network = bench.network(&list("1.0.0", &["one"]));
    assert!(
        !attach_saved(&network, &path, &attachment())
            .await
            .unwrap_err()
            .left_something()
    );
    assert_eq!(left_in(&bench.path("journal")), 0);
    // So does a failure before the first plugin.
    let network = bench.network(&list("1.0.0", &["missing"]));
    attach_saved(&network, &path, &attachment())
        .await
        .unwrap_err();
    assert_eq!(left_in(&bench.path("journal")), 0);
}

#[tokio::test]
async fn no_plugin_runs_without_a_journal() {
    let bench = Bench::new();
    bench.good("one", "10.0.0.2/24");
    let path = bench.path("no-such-dir/x.json");
    let error = attach_saved(
        &bench.network(&list("1.0.0", &["one"])),
        &path,
        &attachment(),
    )
    .await
    .unwrap_err();
    assert!(
        matches!(error, Error::Journal { doing: "write", .. }),
        "{error}"
    );
    assert!(bench.order().is_empty());
}

#[tokio::test]
async fn attachment_with_unwritable_result_is_rolled_back() {
    let bench = Bench::new();
    let path = journal(&bench);
    // The file disappears while the plugin runs.
    let body = format!(
        "[ $CNI_COMMAND != ADD ] || {{ rm '{}'; echo '{}'; }}",
        path.display(),
        result("1.0.0", "10.0.0.2/24")
    );
    bench.plugin("one", &body);
    let error = attach_saved(
        &bench.network(&list("1.0.0", &["one"])),
        &path,
        &attachment(),
    )
    .await
    .unwrap_err();
    assert_eq!(bench.order(), ["ADD one", "DEL one"]);
    assert!(matches!(&error, Error::Add { undo: None, .. }), "{error}");
}

/// The contents of a journal of a whole attachment.
async fn whole_journal(bench: &Bench, path: &Path) -> String {
    bench.good("one", "10.0.0.2/24");
    attach_saved(
        &bench.network(&list("1.0.0", &["one"])),
        path,
        &attachment(),
    )
    .await
    .unwrap();
    fs::read_to_string(path).unwrap()
}

#[tokio::test]
async fn journal_of_another_version_is_reported_and_kept() {
    let bench = Bench::new();
    let path = journal(&bench);
    let newer = whole_journal(&bench, &path)
        .await
        .replace("\"version\":2", "\"version\":3");
    fs::write(&path, &newer).unwrap();
    for netns in [None, Some(Path::new("/run/netns/x"))] {
        let error = del_saved(&path, &bench.plugins(), netns).await.unwrap_err();
        assert!(matches!(error, Error::JournalContent { .. }), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }
    assert_eq!(bench.order(), ["ADD one"]);
}

#[tokio::test]
async fn damaged_journal_is_reported_until_its_namespace_is_gone() {
    let bench = Bench::new();
    let path = journal(&bench);
    let text = whole_journal(&bench, &path).await;
    let nothing = "\0".repeat(text.len());
    for broken in [
        &text[1..],
        &nothing,
        &text.replace("\"attachment\"", "\"attachmemt\""),
        // As if this version were stricter than the one that wrote it.
        &text.replace("\"name\":\"net\"", "\"name\":\"-net\""),
        &text.replace("\"containerId\":\"c0ffee\"", "\"containerId\":\"../x\""),
    ] {
        fs::write(&path, broken).unwrap();
        let netns = Some(Path::new("/run/netns/x"));
        let error = del_saved(&path, &bench.plugins(), netns).await.unwrap_err();
        assert!(matches!(error, Error::JournalDamaged { .. }), "{error}");
        assert!(path.exists());
        // As after a reboot.
        del_saved(&path, &bench.plugins(), None).await.unwrap();
        assert!(!path.exists());
    }
    assert_eq!(bench.order(), ["ADD one"]);
}

#[tokio::test]
async fn damaged_result_does_not_keep_a_journal_whose_namespace_is_gone() {
    let bench = Bench::new();
    let path = journal(&bench);
    let text = whole_journal(&bench, &path).await;
    fs::write(&path, text.replace("10.0.0.2/24", "10.0.0.2/2x")).unwrap();
    let error = del_saved(&path, &bench.plugins(), Some(Path::new("/run/netns/x")))
        .await
        .unwrap_err();
    assert!(matches!(error, Error::Result { .. }), "{error}");
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert!(!path.exists());
    assert_eq!(bench.order(), ["ADD one", "DEL one"]);
}

#[tokio::test]
async fn truncated_intent_means_no_plugin_ran() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one"]));
    network.save(&path, &attachment()).await.unwrap();
    let whole = fs::read(&path).unwrap();
    assert!(Saved::read(&path).unwrap().is_some());
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        assert_eq!(Saved::read(&path).unwrap(), None, "{length} bytes");
    }
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert!(!path.exists() && bench.order().is_empty());
}

#[tokio::test]
async fn truncated_result_is_unknown() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    attach_saved(
        &bench.network(&list("1.0.0", &["one"])),
        &path,
        &attachment(),
    )
    .await
    .unwrap();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, &text[..text.len() - 1]).unwrap();
    let saved = Saved::read(&path).unwrap().unwrap();
    assert_eq!(saved.result(&path).unwrap(), None);
    del_saved(&path, &bench.plugins(), None).await.unwrap();
    assert_eq!(bench.order(), ["ADD one", "DEL one"]);
    assert!(!path.exists());
}

#[tokio::test]
async fn attachment_of_a_driver_is_left_to_it_with_or_without_a_namespace() {
    let bench = Bench::new();
    let path = journal(&bench);
    bench.good("one", "10.0.0.2/24");
    let network = bench.network(&list("1.0.0", &["one"]));
    let requested = attachment();
    let driver = Driver {
        name: "native",
        is_pinned: true,
    };
    save_for_driver(&path, network.list(), &requested, driver)
        .await
        .unwrap();
    save_result(&path, &result("1.0.0", "10.0.0.2/24"))
        .await
        .unwrap();
    for netns in [Some(Path::new("/run/netns/x")), None] {
        let refused = del_saved(&path, &bench.plugins(), netns).await.unwrap_err();
        assert!(matches!(refused, Error::JournalDriver { .. }), "{refused}");
    }
    assert_eq!(bench.order(), Vec::<String>::new());
    let saved = Saved::read(&path).unwrap().unwrap();
    assert_eq!((saved.driver(), saved.is_pinned()), (Some("native"), true));
    let made = saved.result(&path).unwrap().unwrap();
    assert_eq!(
        made.pod_ips("eth0"),
        ["10.0.0.2".parse::<std::net::IpAddr>().unwrap()]
    );
    remove_journal(&path).await.unwrap();
    remove_journal(&path).await.unwrap();
    assert_eq!(left_in(&bench.path("journal")), 0);
}
