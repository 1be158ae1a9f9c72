//! The daemon's log in a journal: its priorities and fields, by which it is filtered and joined.

use std::collections::BTreeMap;
use std::os::unix::net::UnixDatagram;
use std::time::{Duration, Instant};

use serde_json::Value;
use switchyard_tests::node::TestNode;
use switchyard_tests::{cni_plugin, prereq};

/// Time for an entry to arrive.
const LIMIT: Duration = Duration::from_secs(30);

/// The longest entry that is read, in bytes.
const ENTRY_MAX: usize = 1 << 20;

/// A plugin that refuses all that is to be attached.
const REFUSING: &str = r#"if [ "$CNI_COMMAND" = ADD ]; then
    printf '%s' '{"cniVersion":"1.0.0","code":100,"msg":"no room\nPRIORITY=0"}'
    exit 1
fi
"#;

/// An entry of the journal, by the names of its fields.
type Entry = BTreeMap<String, String>;

/// The fields of an entry: `NAME=VALUE`, or the name, the length and the value.
fn parse(entry: &[u8]) -> Entry {
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).expect("the log is UTF-8");
    let mut fields = Entry::new();
    let mut rest = entry;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let line = &rest[..end];
        rest = &rest[end + 1..];
        let (name, value) = match line.iter().position(|byte| *byte == b'=') {
            Some(at) => (&line[..at], &line[at + 1..]),
            None => {
                let (length, after) = rest.split_first_chunk().expect("a length follows");
                let length = usize::try_from(u64::from_le_bytes(*length)).expect("it is short");
                let (value, after) = after.split_at(length);
                rest = after.strip_prefix(b"\n").expect("a value ends its line");
                (line, value)
            }
        };
        let former = fields.insert(text(name), text(value));
        assert_eq!(former, None, "{} occurs twice", text(name));
    }
    assert!(rest.is_empty(), "an entry ends with a newline");
    fields
}

/// Reads entries until one is as wanted.
#[track_caller]
fn find(journal: &UnixDatagram, is_wanted: impl Fn(&Entry) -> bool) -> Entry {
    let deadline = Instant::now() + LIMIT;
    let mut bytes = vec![0; ENTRY_MAX];
    let mut seen = Vec::new();
    while Instant::now() < deadline {
        journal
            .set_read_timeout(Some(LIMIT))
            .expect("a timeout can be set");
        let Ok(length) = journal.recv(&mut bytes) else {
            break;
        };
        let entry = parse(&bytes[..length]);
        if is_wanted(&entry) {
            return entry;
        }
        seen.push(entry.get("MESSAGE").cloned().unwrap_or_default());
    }
    panic!("no such entry among {seen:#?}")
}

/// Returns whether a field of an entry has this value.
fn has(entry: &Entry, name: &str, value: &str) -> bool {
    entry.get(name).is_some_and(|found| found == value)
}

#[test]
fn failed_operation_is_an_entry_of_the_journal_with_its_cause_and_names() {
    // Nobody reads the journal until the daemon is ready: that delays nothing.
    let (node, journal) = TestNode::start_in_journal(|root| {
        let dir = cni_plugin::add(root, "refusing", REFUSING);
        format!(
            "[audit]\nto = \"journal\"\n[network]\nbin_dirs = [{dir:?}, {:?}]\n",
            prereq::CNI_BIN_DIR
        )
    });
    find(&journal, |entry| {
        entry["MESSAGE"].starts_with("recovered; requests are served")
    });
    node.cri()
        .run_pod(&node.pod_config("refused"))
        .expect_err("its network refuses it");
    let is_creation = |entry: &Entry| has(entry, "SWITCHYARD_OPERATION", "create_sandbox");
    // The line of the audit log is sent by another thread: either may come first.
    let both = [(); 2].map(|()| {
        find(&journal, |entry| {
            is_creation(entry)
                && (has(entry, "SYSLOG_IDENTIFIER", "switchyard-audit")
                    || entry["MESSAGE"].starts_with("an operation failed "))
        })
    });
    let [audited, logged] = if has(&both[0], "SYSLOG_IDENTIFIER", "switchyard") {
        let [logged, audited] = both;
        [audited, logged]
    } else {
        both
    };
    for (name, value) in [
        ("SYSLOG_IDENTIFIER", "switchyard"),
        ("PRIORITY", "4"),
        ("SWITCHYARD_OWNER", "kubernetes"),
        ("SWITCHYARD_POD", "refused"),
        ("SWITCHYARD_NAMESPACE", "tests"),
        ("SWITCHYARD_ERROR_KIND", "internal"),
        ("SWITCHYARD_PROTOCOL", "cri"),
    ] {
        assert!(has(&logged, name, value), "{name}: {logged:#?}");
    }
    // What a plugin says made no second priority, and is in the text too.
    assert!(
        logged["SWITCHYARD_ERROR"].contains("no room"),
        "{logged:#?}"
    );
    assert!(logged["MESSAGE"].contains("no room"), "{logged:#?}");
    assert!(logged["SWITCHYARD_RPC"].ends_with("RunPodSandbox"));
    for name in [
        "SWITCHYARD_OPERATION_ID",
        "SWITCHYARD_SANDBOX",
        "SWITCHYARD_POD_UID",
    ] {
        assert_eq!(logged[name], audited[name], "{name} joins the two");
    }
    let line: Value = serde_json::from_str(&audited["MESSAGE"]).expect("it is JSON");
    assert_eq!(line["operation_id"], audited["SWITCHYARD_OPERATION_ID"]);
    // A request that cannot be fulfilled is no warning.
    let reference = node.registry().reference("none:1");
    node.cri()
        .pull(&reference, None)
        .expect_err("the registry does not have it");
    let logged = find(&journal, |entry| {
        has(entry, "SWITCHYARD_OPERATION", "pull_image")
            && has(entry, "SYSLOG_IDENTIFIER", "switchyard")
    });
    assert!(has(&logged, "PRIORITY", "6"), "{logged:#?}");
    assert!(logged["SWITCHYARD_IMAGE"].contains("none:1"), "{logged:#?}");
    let (_, metrics) = node.daemon().get("/metrics");
    let lost = "switchyard_daemon_log_lines_total{result=\"lost\"} 0";
    assert!(metrics.contains(lost), "{metrics}");
}

#[test]
fn entries_are_read_as_the_journal_reads_them() {
    let entry = b"PRIORITY=4\nA\n\x03\0\0\0\0\0\0\0x\ny\nB=c=d\n";
    let expected = [("A", "x\ny"), ("B", "c=d"), ("PRIORITY", "4")];
    let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
    assert_eq!(parse(entry), Entry::from(expected));
}
