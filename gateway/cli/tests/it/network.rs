//! `switchyard network`, in network namespaces of the tests' own.

use std::collections::BTreeSet;
use std::env;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::thread;

use nix::sched::{CloneFlags, unshare};
use serde_json::Value;
use switchyard_network::iptables::accept_forwarded;
use switchyard_network::nft::{
    BridgeName, BridgeRules, Element, NftFamily, NftSubnet, NftTables, TableName, Transport,
};

use crate::support::command;

/// Runs a test on a thread with its own network namespace, which ends with it. Processes that it starts are in it too.
fn in_private_netns(test: impl FnOnce() + Send) {
    thread::scope(|scope| {
        let private = || {
            unshare(CloneFlags::CLONE_NEWNET)
                .expect("these tests make network namespaces and so must run as root");
            test();
        };
        let outcome = scope.spawn(private).join();
        outcome.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
}

fn nft(words: &[&str]) {
    let done = Command::new("nft").args(words).status();
    assert!(
        done.expect("install the package nftables").success(),
        "{words:?}"
    );
}

/// Returns the element that a bridge without published ports needs.
fn bridge() -> Element {
    Element::Bridge(BridgeName::new("switchyard0").unwrap())
}

fn published() -> Element {
    Element::Port {
        at: None,
        protocol: Transport::Tcp,
        port: 8080,
        to: "172.26.80.2".parse().unwrap(),
        to_port: 80,
    }
}

/// Makes the table of a family for these elements.
fn make(family: NftFamily, elements: &[Element]) {
    let elements: BTreeSet<Element> = elements.iter().cloned().collect();
    let mut tables = NftTables::open(TableName::default()).unwrap();
    tables.restore(family, &elements).unwrap();
}

/// Runs a program of iptables, which waits for others that work on the same filter, and returns what it printed.
fn iptables(program: &str, words: &str) -> String {
    let mut command = Command::new(program);
    let done = command.args(["-w", "20"]).args(words.split(' ')).output();
    let done = done.expect("install the package iptables");
    assert!(done.status.success(), "{words}");
    String::from_utf8(done.stdout).unwrap()
}

/// Has what a bridge forwards accepted, as a daemon does.
fn accept() {
    let bridge = BridgeRules {
        name: BridgeName::new("switchyard0").unwrap(),
        owner: String::new(),
        subnets: vec![NftSubnet::new("172.26.80.0".parse().unwrap(), 20).unwrap()],
        is_gateway: true,
        masquerade: true,
        direct_routing: true,
    };
    for change in accept_forwarded(&TableName::default(), &[bridge]) {
        assert_eq!(change.unwrap().added, 3);
    }
}

/// A node without a daemon.
struct QuietNode {
    dir: tempfile::TempDir,
}

impl QuietNode {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().display();
        let text = format!("version = 1\n[paths]\nstate = \"{at}/state\"\nrun = \"{at}/run\"\n");
        fs::write(dir.path().join("config.toml"), text).unwrap();
        Self { dir }
    }

    /// Calls the command, and returns its standard output after success, else its standard error.
    fn network(&self, words: &[&str]) -> Result<String, String> {
        printed(self.command(words).output().unwrap())
    }

    /// The command.
    fn command(&self, words: &[&str]) -> Command {
        let config = self.dir.path().join("config.toml");
        let config = config.to_str().unwrap();
        command(&[&["network"][..], words, &["--config", config]].concat())
    }

    fn sandbox(&self) -> PathBuf {
        self.dir.path().join("state/sandboxes/a1")
    }

    /// Records a sandbox whose network was made by this driver; by plugins without one.
    fn attach(&self, driver: Option<&str>) {
        fs::create_dir_all(self.sandbox()).unwrap();
        let mut journal = serde_json::json!({ "version": 2, "network": { "name": "switchyard0" } });
        if let Some(driver) = driver {
            journal["network"]["switchyard.driver"] = driver.into();
        }
        fs::write(self.sandbox().join("cni.json"), journal.to_string()).unwrap();
    }

    #[track_caller]
    fn assert_refused(&self, part: &str) {
        let why = self.network(&["clear"]).unwrap_err();
        assert!(
            why.contains("nothing is removed") && why.contains(part),
            "{part}: {why}"
        );
        assert_eq!(NftTables::list().unwrap().len(), 2, "{part}");
    }
}

/// The standard output of a command after success, else its standard error.
#[track_caller]
fn printed(done: Output) -> Result<String, String> {
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
    match done.status.code() {
        Some(0) => Ok(text(done.stdout)),
        Some(1) => Err(text(done.stderr)),
        other => panic!("it ended with {other:?}: {}", text(done.stderr)),
    }
}

#[test]
fn tables_are_removed_once_nothing_needs_them() {
    in_private_netns(|| {
        let node = QuietNode::new();
        let nothing = "no daemon has made a table in this network namespace\n";
        assert_eq!(node.network(&["show"]).unwrap(), nothing);
        assert_eq!(node.network(&["clear"]).unwrap(), "");
        nft(&["add", "table", "ip", "other"]);
        make(NftFamily::Ip4, &[bridge(), published()]);
        make(NftFamily::Ip6, &[bridge()]);
        node.assert_refused("table ip switchyard has 1 published ports");
        node.attach(Some("native"));
        node.assert_refused("sandbox a1");
        make(NftFamily::Ip4, &[bridge()]);
        node.assert_refused("sandbox a1");
        node.attach(None);
        let removed = "removed table ip switchyard\nremoved table ip6 switchyard\n";
        assert_eq!(node.network(&["clear"]).unwrap(), removed);
        assert!(NftTables::list().unwrap().is_empty());
        nft(&["list", "table", "ip", "other"]);
        // What needs them is told, and given up if that is wanted.
        make(NftFamily::Ip4, &[bridge(), published()]);
        node.attach(Some("native"));
        let text = node
            .network(&["clear", "--force", "--output", "json"])
            .unwrap();
        let json: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            json,
            serde_json::json!({ "removed": [{ "family": "ip", "name": "switchyard" }], "rules": {} })
        );
        assert!(NftTables::list().unwrap().is_empty());
    });
}

#[test]
fn rules_in_iptables_are_removed_with_the_tables_and_those_of_others_stay() {
    in_private_netns(|| {
        let node = QuietNode::new();
        iptables("iptables", "-P FORWARD DROP");
        let before = iptables("iptables", "-S FORWARD");
        iptables("iptables", "-A FORWARD -i eth9 -j ACCEPT");
        accept();
        make(NftFamily::Ip4, &[published()]);
        assert!(node.network(&["clear"]).is_err());
        assert_eq!(iptables("iptables", "-S FORWARD").lines().count(), 5);
        let text = node.network(&["clear", "--force"]).unwrap();
        assert!(text.contains("removed 3 rules of iptables"), "{text}");
        let kept = format!("{before}-A FORWARD -i eth9 -j ACCEPT\n");
        assert_eq!(iptables("iptables", "-S FORWARD"), kept);
        assert_eq!(node.network(&["clear"]).unwrap(), "");
    });
}

#[test]
fn filter_that_its_program_cannot_read_keeps_nothing_else_from_being_removed() {
    in_private_netns(|| {
        let node = QuietNode::new();
        let forward = || iptables("iptables-legacy", "-S FORWARD");
        iptables("iptables-legacy", "-P FORWARD DROP");
        let before = forward();
        accept();
        make(NftFamily::Ip4, &[bridge()]);
        // A chain of nftables by the name of one of iptables, with a rule that no rule of iptables is like.
        let chain = "{ type filter hook forward priority 0; }";
        nft(&["add", "table", "ip", "filter"]);
        nft(&["add", "chain", "ip", "filter", "FORWARD", chain]);
        let rule = ["ip", "filter", "FORWARD", "meta", "mark", "set", "7"];
        nft(&[&["add", "rule"][..], &rule].concat());
        let why = node.network(&["clear"]).unwrap_err();
        assert!(
            why.contains("not all is removed") && why.contains("iptables -S FORWARD"),
            "{why}"
        );
        assert_eq!(forward(), before);
        assert!(NftTables::list().unwrap().is_empty());
        nft(&["list", "chain", "ip", "filter", "FORWARD"]);
    });
}

/// Without tables, only a filter that others have filled is no concern.
#[test]
fn failure_of_iptables_is_told_with_and_without_tables() {
    for (status, has_table, is_told) in [
        (1, false, false),
        (2, false, false),
        (4, false, true),
        (1, true, true),
        (4, true, true),
    ] {
        in_private_netns(|| {
            let node = QuietNode::new();
            let chain = "{ type filter hook forward priority 0; }";
            nft(&["add", "table", "ip", "filter"]);
            nft(&["add", "chain", "ip", "filter", "FORWARD", chain]);
            if has_table {
                make(NftFamily::Ip4, &[bridge()]);
            }
            // Written by another process: a program that a test starts meanwhile would keep the file open, and the kernel executes no such
            // file.
            let write =
                "printf '#!/bin/sh\\n%s\\n' \"$1\" > iptables-nft && chmod 755 iptables-nft";
            let body = format!(
                "[ \"$1\" != --version ] || exec echo 'iptables v1.8.9 (nf_tables)'\necho no >&2\nexit {status}"
            );
            let mut shell = Command::new("sh");
            shell.args(["-c", write, "sh", &body]);
            let written = shell.current_dir(node.dir.path()).status();
            assert!(written.unwrap().success());
            let path = env::var_os("PATH").unwrap_or_default();
            let dirs = [node.dir.path().to_owned()].into_iter();
            let path = env::join_paths(dirs.chain(env::split_paths(&path))).unwrap();
            let mut clear = node.command(&["clear"]);
            let cleared = printed(clear.env("PATH", path).output().unwrap());
            assert_eq!(
                cleared.is_err(),
                is_told,
                "{status} {has_table}: {cleared:?}"
            );
            if let Err(why) = cleared {
                assert!(why.contains("not all is removed"), "{why}");
            }
            assert!(NftTables::list().unwrap().is_empty());
        });
    }
}

#[test]
fn tables_are_shown_with_what_others_changed() {
    in_private_netns(|| {
        let node = QuietNode::new();
        make(NftFamily::Ip4, &[bridge(), published()]);
        make(NftFamily::Ip6, &[]);
        let intact = |node: &QuietNode| -> Vec<Value> {
            let text = node.network(&["show", "--output", "json"]).unwrap();
            let json: Value = serde_json::from_str(&text).unwrap();
            let tables = json["tables"].as_array().unwrap().iter();
            tables.map(|table| table["intact"].clone()).collect()
        };
        assert_eq!(intact(&node), [true, true]);
        let text = node.network(&["show"]).unwrap();
        assert!(
            text.contains("8080  tcp       *        172.26.80.2:80  ip switchyard"),
            "{text}"
        );
        for (family, change) in [
            (
                "ip",
                &[
                    "insert",
                    "rule",
                    "ip",
                    "switchyard",
                    "filter_forward",
                    "counter",
                ][..],
            ),
            (
                "ip6",
                &["flush", "chain", "ip6", "switchyard", "nat_output"][..],
            ),
        ] {
            nft(change);
            let text = node.network(&["show"]).unwrap();
            let line = text
                .lines()
                .find(|line| line.starts_with(&format!("{family} ")));
            assert!(line.unwrap().contains("changed by others"), "{text}");
        }
        assert_eq!(intact(&node), [false, false]);
    });
}

#[test]
fn journal_that_cannot_be_read_counts_as_one_that_needs_the_tables() {
    in_private_netns(|| {
        let node = QuietNode::new();
        make(NftFamily::Ip4, &[]);
        make(NftFamily::Ip6, &[]);
        node.attach(None);
        fs::write(node.sandbox().join("cni.json"), "nonsense").unwrap();
        node.assert_refused("cni.json");
        fs::remove_dir_all(node.sandbox()).unwrap();
        assert!(node.network(&["clear"]).is_ok());
    });
}
