//! The metrics listener of a real daemon: strangers, secrets, and files that change while it runs.

use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::Command;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};
use switchyard_tests::daemon::binary;
use switchyard_tests::host::eventually;
use switchyard_tests::scraped_node::{ScrapedTestNode, TOKEN, write_token};
use switchyard_tls::testing::Authority;

/// Number of connections that a stranger holds.
const HELD: usize = 10_000;
/// Time for a changed file to be noticed.
const SOON: Duration = Duration::from_secs(60);

/// Questions of these tests to a node.
trait AskedNode {
    /// Returns whether it serves its metrics to whoever sends this token and trusts this authority.
    fn is_served(&self, token: &str, authority: &Authority) -> bool;

    /// Runs a command of the command line against the daemon; whether it succeeds, and what it prints.
    fn run(&self, words: &[&str]) -> (bool, String);

    /// The daemon's log.
    fn log(&self) -> String;
}

impl AskedNode for ScrapedTestNode {
    fn is_served(&self, token: &str, authority: &Authority) -> bool {
        let answer = self.get("/metrics", token, authority);
        answer.is_ok_and(|answer| {
            answer.starts_with("HTTP/1.1 200 ") && answer.contains("switchyard_build_info")
        })
    }

    fn run(&self, words: &[&str]) -> (bool, String) {
        let socket = self.node.root().run().join("admin.sock");
        let done = Command::new(binary())
            .args(words)
            .arg("--socket")
            .arg(socket)
            .output();
        let done = done.expect("the binary exists");
        (
            done.status.success(),
            String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned(),
        )
    }

    fn log(&self) -> String {
        fs::read_to_string(self.node.root().daemon_log()).expect("the daemon has written it")
    }
}

#[test]
fn ten_thousand_idle_connections_do_not_block_the_metrics_listener() {
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("a limit can be asked for");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("it may be raised to its hard limit");
    let scraped = ScrapedTestNode::start(|_| String::new());
    let files = || {
        let files =
            fs::read_dir(format!("/proc/{}/fd", scraped.node.daemon().pid())).expect("it runs");
        files.count()
    };
    let before = files();
    let mut held = Vec::new();
    for number in 0..HELD {
        let mut stream = TcpStream::connect(scraped.address()).expect("it accepts");
        let words = [
            &b""[..],
            &[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc],
            b"GET /metrics HTTP/1.1\r\n\r\n",
        ][number % 3];
        // It may be closed already for a later one.
        drop(stream.write_all(words));
        held.push(stream);
        if number % 1000 == 0 {
            assert!(
                scraped.is_served(TOKEN, &scraped.authority),
                "after {number} connections"
            );
        }
    }
    assert!(scraped.is_served(TOKEN, &scraped.authority));
    let after = files();
    assert!(
        after <= before + 600,
        "{before} files were open, and {after} are"
    );
    assert_eq!(
        scraped.node.pod("unharmed").run_shell("echo works", |_| {}),
        "works"
    );
}

#[test]
fn token_is_in_no_log_page_dump_or_error() {
    let scraped = ScrapedTestNode::start(|_| "[log]\nlevel = \"trace\"\n".to_owned());
    let root = scraped.node.root();
    let mut seen = Vec::new();
    for token in [TOKEN, &format!("{TOKEN}-wrong")] {
        for path in ["/metrics", "/", "/nowhere", "/readyz?verbose"] {
            seen.push(
                scraped
                    .get(path, token, &scraped.authority)
                    .expect("it answers"),
            );
        }
    }
    for words in [
        &["config", "dump", "--running", "--origin"][..],
        &["status"],
        &["config", "reload"],
    ] {
        let (succeeds, text) = scraped.run(words);
        assert!(succeeds, "{words:?}: {text}");
        seen.push(text);
    }
    for path in ["/v1/config?origin", "/statusz", "/metrics", "/v1/objects"] {
        seen.push(scraped.node.daemon().get(path).1);
    }
    // Each of these is refused, with the name of the file.
    for (text, mode) in [
        (TOKEN, 0o644),
        (&TOKEN[..12], 0o600),
        (&format!("{TOKEN}\n{TOKEN}"), 0o600),
    ] {
        let file = write_token(root, text, mode);
        let (succeeds, error) = scraped.run(&["config", "reload"]);
        assert!(
            !succeeds && error.contains(&file.display().to_string()),
            "{error}"
        );
        seen.push(error);
    }
    assert!(
        scraped.is_served(TOKEN, &scraped.authority),
        "the former token stays in force"
    );
    write_token(root, TOKEN, 0o600);
    seen.push(scraped.log());
    for text in seen {
        let at = text.find(&TOKEN[..12]);
        assert_eq!(
            at,
            None,
            "the token is in {}",
            &text[at.unwrap_or(0).saturating_sub(200)..]
        );
    }
}

#[test]
fn changed_files_are_in_force_soon_and_unusable_ones_are_not() {
    let scraped = ScrapedTestNode::start(|_| String::new());
    let root = scraped.node.root();
    assert!(scraped.is_served(TOKEN, &scraped.authority));
    let next = "the-next-token-of-the-tests-0123456789";
    write_token(root, next, 0o600);
    assert!(
        eventually(SOON, || scraped.is_served(next, &scraped.authority)),
        "{}",
        scraped.log()
    );
    assert!(!scraped.is_served(TOKEN, &scraped.authority));
    write_token(root, "", 0o600);
    let is_told = || scraped.log().contains("the former ones stay in force");
    assert!(eventually(SOON, is_told), "{}", scraped.log());
    assert!(scraped.is_served(next, &scraped.authority));
    write_token(root, next, 0o600);
    // A new authority: the files of the certificate are replaced under their names.
    let other = Authority::new(root.path(), "other");
    let renewed = other.issue("node");
    let present = root.path().join("metrics-node");
    fs::copy(renewed.key, present.with_extension("key")).expect("it can be written");
    fs::copy(renewed.certificate, present.with_extension("crt")).expect("it can be written");
    assert!(
        eventually(SOON, || scraped.is_served(next, &other)),
        "{}",
        scraped.log()
    );
    assert!(!scraped.is_served(next, &scraped.authority));
}

#[test]
fn metrics_beyond_loopback_without_tls_or_clients_are_refused() {
    let scraped = ScrapedTestNode::start(|_| String::new());
    let good = fs::read_to_string(scraped.node.root().config()).expect("it was written");
    let without = |key: &str| {
        let lines = good.lines().filter(|line| !line.starts_with(key));
        lines.map(|line| format!("{line}\n")).collect::<String>()
    };
    for (key, why) in [
        ("metrics_tls_", "with TLS only"),
        ("metrics_bearer_token_file", "must show who they are"),
    ] {
        fs::write(scraped.node.root().config(), without(key)).expect("it is ours");
        let (succeeds, text) = scraped.run(&["config", "reload"]);
        assert!(
            !succeeds && text.contains(why) && text.contains("admin.metrics_listen"),
            "{text}"
        );
    }
    assert!(scraped.is_served(TOKEN, &scraped.authority));
}
