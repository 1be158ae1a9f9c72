//! Messages have the documented shape, and the largest fit a line.

use super::*;

#[test]
fn requests_have_the_documented_shape() {
    let open = Request::Open(LogSpec {
        id: "c1".into(),
        stdout: Some("/run/out".into()),
        stderr: None,
        log: Some("/var/log/c1".into()),
        tty: true,
        max_line: 16384,
    });
    let text = serde_json::to_string(&open).unwrap();
    assert_eq!(
        text,
        r#"{"op":"open","id":"c1","stdout":"/run/out","stderr":null,"log":"/var/log/c1","tty":true,"max_line":16384}"#
    );
    assert_eq!(serde_json::from_str::<Request>(&text).unwrap(), open);
    assert_eq!(
        serde_json::to_string(&Request::Stats).unwrap(),
        r#"{"op":"stats"}"#
    );
    let attach = Request::Attach {
        id: "c1".into(),
        stream: Stream::Stdout,
        from: None,
    };
    let text = serde_json::to_string(&attach).unwrap();
    assert_eq!(
        text,
        r#"{"op":"attach","id":"c1","stream":"stdout","from":null}"#
    );
}

#[test]
fn replies_have_the_documented_shape() {
    let reply = Reply::Ok(Welcome {
        version: 1,
        pid: 7,
        build: "0.1.0".into(),
        descriptors: 64,
    });
    assert_eq!(
        serde_json::to_string(&reply).unwrap(),
        r#"{"ok":{"version":1,"pid":7,"build":"0.1.0","descriptors":64}}"#
    );
    let reply = Reply::<Done>::Error(Fault::new(FaultKind::NotFound, "no container c1"));
    let text = serde_json::to_string(&reply).unwrap();
    assert_eq!(
        text,
        r#"{"error":{"kind":"not_found","message":"no container c1"}}"#
    );
    assert_eq!(serde_json::from_str::<Reply<Done>>(&text).unwrap(), reply);
}

#[test]
fn stats_of_older_and_newer_logkeepers_are_understood() {
    let totals = r#""totals":{"lines":1,"bytes":2,"dropped_lines":0,"dropped_bytes":0}"#;
    let old = format!(r#"{{"ok":{{"containers":3,"recovered":0,"finished":0,{totals}}}}}"#);
    let totals = Counters {
        lines: 1,
        bytes: 2,
        ..Counters::default()
    };
    let stats = Stats {
        containers: 3,
        totals,
        ..Stats::default()
    };
    let stats = Reply::Ok(stats);
    assert_eq!(serde_json::from_str::<Reply<Stats>>(&old).unwrap(), stats);
    let new = serde_json::to_string(&stats)
        .unwrap()
        .replace("stalls", "of_the_future");
    assert_eq!(serde_json::from_str::<Reply<Stats>>(&new).unwrap(), stats);
    let point = r#"{"ok":{"containers":1,"recovered":0,"finished":0,"totals":{"lines":0,"bytes":0,"dropped_lines":0,"dropped_bytes":0},"file_systems":[{"mount_point":"/logs","of_the_future":[1]}]}}"#;
    let Reply::Ok(later) = serde_json::from_str::<Reply<Stats>>(point).unwrap() else {
        panic!("{point}")
    };
    let known = LogFileSystem {
        mount_point: "/logs".into(),
        ..LogFileSystem::default()
    };
    assert_eq!(later.file_systems, [known]);
}

#[test]
fn the_largest_page_fits_a_line() {
    let counters = Counters {
        lines: u64::MAX,
        bytes: u64::MAX,
        dropped_lines: u64::MAX,
        dropped_bytes: u64::MAX,
    };
    let entry = Entry {
        id: "x".repeat(MAX_ID),
        counters,
        finishing: false,
    };
    let page = Page {
        entries: vec![entry; PAGE_LEN],
        next: Some("x".repeat(MAX_ID)),
    };
    assert!(serde_json::to_vec(&Reply::Ok(page)).unwrap().len() < MAX_LINE);
}

#[test]
fn the_largest_list_of_descriptors_fits_a_line() {
    let entry = DescriptorEntry {
        name: "x".repeat(MAX_NAME),
        // Of the characters that a note may have, these take the most bytes in JSON.
        note: "\"".repeat(MAX_NOTE),
        claimed: false,
    };
    let list = Descriptors {
        entries: vec![entry; MAX_DESCRIPTORS],
    };
    assert!(serde_json::to_vec(&Reply::Ok(list)).unwrap().len() < MAX_LINE);
}
