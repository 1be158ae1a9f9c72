//! The status page in a browser, on real containers: who may open it, and how people and screen readers see it.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde_json::json;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::browser::{Browser, BrowserPage, Viewport};
use switchyard_tests::host::eventually;
use switchyard_tests::node::{TestNode, TestPod};
use switchyard_tests::nomad::agent::Agent;
use switchyard_tests::nomad::task::TaskSetup;

use crate::history::SECRET;

/// Time for something to appear.
const LIMIT: Duration = Duration::from_secs(30);

/// The least contrast of text that WCAG 2.2 demands (AA).
const CONTRAST: f64 = 4.5;

/// A hostile output and name of a program.
const HOSTILE: &str = "<script>document.title=1</script><b>\u{202e}bold";

const WIDE: Viewport = Viewport {
    width: 1440,
    is_dark: false,
};
const VIEWS: [Viewport; 4] = [
    WIDE,
    Viewport {
        is_dark: true,
        ..WIDE
    },
    Viewport {
        width: 360,
        is_dark: false,
    },
    Viewport {
        width: 360,
        is_dark: true,
    },
];

/// The faults in the appearance of a page, in one view.
fn faults(page: &mut BrowserPage<'_>, view: Viewport) -> Vec<String> {
    page.look(view);
    let (content, seen) = page.widths();
    let mut faults = Vec::new();
    if content > seen {
        faults.push(format!("{view:?}: the page is {content} px wide"));
    }
    for text in page.contrasts() {
        if text.ratio < CONTRAST {
            faults.push(format!(
                "{view:?}: {:?} has a contrast of {:.2}",
                text.text, text.ratio
            ));
        }
    }
    for node in page.accessible() {
        let needs_name = matches!(
            node.role.as_str(),
            "link"
                | "button"
                | "heading"
                | "table"
                | "navigation"
                | "region"
                | "columnheader"
                | "rowheader"
        );
        if needs_name && node.name.is_empty() {
            faults.push(format!("{view:?}: a {} has no name", node.role));
        }
    }
    faults
}

/// Writes a picture, if somebody wants to look: to the directory that SWITCHYARD_TEST_SHOTS names.
fn keep_picture(page: &mut BrowserPage<'_>, name: &str, Viewport { width, is_dark }: Viewport) {
    let Some(dir) = std::env::var_os("SWITCHYARD_TEST_SHOTS").map(PathBuf::from) else {
        return;
    };
    fs::create_dir_all(&dir).expect("the directory can be made");
    let mode = if is_dark { "dark" } else { "light" };
    page.screenshot(&dir.join(format!("{name}-{width}-{mode}.png")));
}

#[track_caller]
fn check(page: &mut BrowserPage<'_>, name: &str) {
    let mut wrong = Vec::new();
    for view in VIEWS {
        wrong.extend(faults(page, view));
        keep_picture(page, name, view);
    }
    page.look(WIDE);
    assert!(wrong.is_empty(), "{name}:\n{}", wrong.join("\n"));
}

/// The roles that a page has.
#[track_caller]
fn names_of(page: &mut BrowserPage<'_>, role: &str) -> Vec<String> {
    page.accessible()
        .into_iter()
        .filter(|node| node.role == role)
        .map(|node| node.name)
        .collect()
}

/// The objects of a node.
struct Populated<'n> {
    /// The id of the task that says hostile things.
    main: String,
    agent: Agent,
    job: TaskSetup,
    _pods: [TestPod<'n>; 2],
}

/// Runs pods and a job, some of which have failed or say hostile things.
fn populate(node: &TestNode) -> Populated<'_> {
    let pod = node.pod_with("shop", |config| {
        config.annotations = [("note".to_owned(), SECRET.to_owned())].into();
    });
    let script = format!("echo '{HOSTILE}'; echo $PASSWORD >&2; exec sleep 1000");
    let mut config = node.container("main", &["sh", "-c", &script]);
    config.envs.push(cri::KeyValue {
        key: "PASSWORD".into(),
        value: "in-the-log".into(),
    });
    config.envs.push(cri::KeyValue {
        key: "TOKEN".into(),
        value: SECRET.into(),
    });
    let main = pod.start(&config);
    let broken = node.pod("broken");
    let failed = broken.start(&node.container("failing", &["sh", "-c", "exit 7"]));
    assert_eq!(node.cri().wait_exit(&failed).exit_code, 7);
    let agent = Agent::start(node.root(), &json!({}));
    let options = json!({ "image": node.image(), "command": "sh", "args": ["-c", "exec sleep 1000", SECRET] });
    let job = TaskSetup::new(node.root(), &agent, "web", &options);
    agent.driver().start(&job.config).expect("it starts");
    Populated {
        main,
        agent,
        job,
        _pods: [pod, broken],
    }
}

#[test]
fn page_shows_all_owners_to_who_has_a_link_and_is_readable_in_every_view() {
    let node = TestNode::start();
    let Populated {
        main,
        agent,
        mut job,
        _pods,
    } = populate(&node);
    let home = format!("http://{}/", node.daemon().admin());
    let mut browser = Browser::start();

    let mut page = browser.page(WIDE);
    let text = page.open(&home);
    assert!(
        text.contains("ready") && !text.contains("tests/shop"),
        "{text}"
    );
    check(&mut page, "outside");

    let link = node.output(&["page"]);
    // As after a click on the link in a chat: a page of another site leads there. The link leads on by itself.
    let chat = serve(
        "",
        format!(
            "<meta http-equiv='refresh' content='0; url={}'>",
            link.trim()
        ),
    );
    page.open(&format!("http://localhost:{}/", chat.port()));
    assert!(
        eventually(LIMIT, || page.text().contains("tests/shop")),
        "{}",
        page.text()
    );
    assert_node_is_shown(&mut page);

    assert_second_reading_is_newer(&node, &mut page, &home);

    assert_output_of_a_task_is_text(&mut page, &format!("{home}tasks/{main}"));
    page.open(&format!("{home}?refresh=10"));
    assert!(
        names_of(&mut page, "link")
            .iter()
            .any(|name| name == "Stop refreshing (every 10 s)")
    );

    assert_eq!(page.complaints(), [] as [&str; 0]);
    let chat = format!("http://localhost:{}/", chat.port());
    let is_expected = |url: &String| {
        [&home, &chat, "data:"]
            .iter()
            .any(|start| url.starts_with(*start))
    };
    let origins: Vec<_> = page
        .requests()
        .into_iter()
        .filter(|url| !is_expected(url))
        .collect();
    assert_eq!(origins, [] as [&str; 0]);
    // Another browser cannot use the link again.
    drop(browser);
    let mut other = Browser::start();
    let text = other.page(WIDE).open(link.trim());
    assert!(
        text.contains("was used before") && !text.contains("tests/shop"),
        "{text}"
    );
    job.end(&agent.driver());
}

/// A second reading shows what has begun meanwhile.
fn assert_second_reading_is_newer(node: &TestNode, page: &mut BrowserPage<'_>, home: &str) {
    let late = node.pod("late");
    let newcomer = late.start(&node.container("newcomer", &["sleep", "1000"]));
    let text = page.open(home);
    assert!(
        text.contains("newcomer") && text.contains("task started"),
        "{text}"
    );
    let text = page.open(&format!("{home}tasks/{newcomer}"));
    assert!(
        text.contains("tests/late/newcomer") && text.contains("Nothing was written."),
        "{text}"
    );
}

fn assert_output_of_a_task_is_text(page: &mut BrowserPage<'_>, task: &str) {
    let mut text = String::new();
    assert!(eventually(LIMIT, || {
        text = page.open(task);
        text.contains("in-the-log")
    }));
    assert!(
        text.contains("<script>document.title=1</script><b>\u{fffd}bold"),
        "{text}"
    );
    assert!(!text.contains(SECRET) && !text.contains("TOKEN"), "{text}");
    check(page, "task");
    assert!(
        !page.tags().contains("script") && !page.tags().contains("b"),
        "{:?}",
        page.tags()
    );
}

fn assert_node_is_shown(page: &mut BrowserPage<'_>) {
    let text = page.text();
    for shown in [
        "tests/shop",
        "main",
        "exited (7)",
        "job/group/web",
        "Needs attention",
        "sleep",
    ] {
        let is_there = text.contains(shown);
        assert_eq!(is_there, shown != "sleep", "{shown}: {text}");
    }
    assert!(!text.contains(SECRET), "{text}");
    check(page, "node");
    for landmark in ["main", "banner", "contentinfo"] {
        assert_eq!(names_of(page, landmark).len(), 1, "{landmark}");
    }
    for control in [
        "Refresh every 10 s",
        "Skip to the content",
        "kubernetes (2)",
        "nomad (1)",
        "tests/shop",
    ] {
        assert!(
            names_of(page, "link").iter().any(|name| name == control),
            "{control}"
        );
    }
    assert_eq!(names_of(page, "button"), ["Sign out"]);
}

/// Serves a page with these headers on loopback, until the test process ends.
fn serve(headers: &'static str, body: String) -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("loopback has a free port");
    let address = listener.local_addr().expect("it listens");
    thread::spawn(move || {
        for mut stream in listener.incoming().flatten() {
            let length = body.len();
            let head = format!(
                "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n{headers}Content-Length: {length}"
            );
            // A browser sends its request in one piece.
            let _ = stream.read(&mut [0; 4096]);
            drop(stream.write_all(format!("{head}\r\nConnection: close\r\n\r\n{body}").as_bytes()));
        }
    });
    address
}

#[test]
fn browser_finds_what_is_wrong_with_a_page() {
    let other = serve("", String::new());
    let bad = "<title>t</title><script>document.title = 'x'; document.write('written')</script>\
        <style>p { color: #777; background: #888 } i { color: #000; background: #fff }</style>\
        <div style='width: 500px'>wide</div><p>faint</p><i>clear</i><a href='/x'></a><a href='/y'>named</a>";
    let address = serve("", format!("{bad}<img src='http://{other}/i.png' alt=''>"));
    let strict = serve(
        "Content-Security-Policy: default-src 'none'\r\n",
        bad.to_owned(),
    );
    let mut browser = Browser::start();
    let narrow = Viewport {
        width: 360,
        is_dark: false,
    };
    let mut page = browser.page(narrow);
    let text = page.open(&format!("http://{address}/"));
    assert!(
        text.contains("faint") && !text.contains("written"),
        "a script has run: {text}"
    );
    let contrasts = page.contrasts();
    let ratio = |text: &str| {
        contrasts
            .iter()
            .find(|found| found.text == text)
            .expect("it is shown")
            .ratio
    };
    assert!(
        (ratio("clear") - 21.0).abs() < 0.01 && ratio("faint") < 1.5,
        "{contrasts:?}"
    );
    let found = faults(&mut page, narrow).join("\n");
    for fault in [
        "the page is 5",
        "\"faint\" has a contrast of 1.2",
        "a link has no name",
    ] {
        assert!(found.contains(fault), "{fault} is missing in {found}");
    }
    assert!(
        !found.contains("clear") && found.matches("no name").count() == 1,
        "{found}"
    );
    assert!(
        page.requests().contains(&format!("http://{other}/i.png")),
        "{:?}",
        page.requests()
    );
    assert_eq!(page.complaints(), [] as [&str; 0]);
    page.open(&format!("http://{strict}/"));
    let complaints = page.complaints().join("\n");
    assert!(
        complaints.contains("Content Security Policy"),
        "{complaints}"
    );
}
