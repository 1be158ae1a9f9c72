//! The status page: who may see what, under which names, and what hostile text does to it.

use std::time::Duration;

use axum::Router;
use axum::body::{Body, to_bytes};
use http::header::{ALLOW, CONTENT_SECURITY_POLICY, COOKIE, HOST, REFRESH, SET_COOKIE};
use http::{HeaderMap, Method, Request, StatusCode};
use switchyard_config::ContainerMetrics;
use switchyard_contract::specs;
use switchyard_core::Error;
use switchyard_core::backend::Blocker;
use switchyard_core::id::Owner;
use switchyard_core::operation::Caller;
use switchyard_core::spec::{MemoryLimit, Meta, Output, Resources, SandboxSpec, Stdio, TaskSpec};
use switchyard_core::state::TaskState;
use switchyard_fake::Method as BackendMethod;
use switchyard_linux::kernel_wait::KernelWait;
use switchyard_operator::admin::Reach;
use switchyard_operator_api::PageLinkView;
use tokio::time::{Instant, sleep};
use tower::ServiceExt as _;

use super::node::{TestNode, broken, endless, labelled, pod};

mod site;

use site::Site;

const HOSTILE: &str = "<script>alert(1)</script>\"'&\u{202e}\u{1b}[2J\nx";

/// A sandbox that could not be stopped, and its task, which could not be started.
struct Failed {
    sandbox: String,
    task: String,
}

/// Both are called what is hostile, and why they failed is hostile too. The task has secrets.
async fn failed(node: &TestNode) -> Failed {
    let scope = node.gateway.scope(Owner::Nomad);
    let secret = |meta: Meta| labelled(meta, "label-key", "label-value");
    let spec = specs::sandbox(Owner::Nomad, HOSTILE);
    let sandbox = node
        .sandbox(SandboxSpec {
            meta: secret(spec.meta.clone()),
            ..spec
        })
        .await;
    let spec = endless(Owner::Nomad, HOSTILE);
    let spec = TaskSpec {
        meta: secret(spec.meta.clone()),
        resources: Resources {
            memory_limit_bytes: MemoryLimit::new(1 << 20).ok(),
            ..Resources::default()
        },
        stdio: Stdio {
            output: Output::Log(node.dir.path().join("0.log")),
            ..Stdio::default()
        },
        ..spec
    };
    let task = node.task(&sandbox, spec).await;
    node.fake.set_runtime_spec(
        task.id,
        r#"{"process":{"args":["serve"],"env":["TOKEN_NAME=hunter2"]}}"#,
    );
    let failed = Failed {
        sandbox: sandbox.id.to_string(),
        task: task.id.to_string(),
    };
    node.fake
        .fail_next(BackendMethod::StartTask, Error::internal(HOSTILE));
    scope.tasks().start(&failed.task).await.unwrap_err();
    node.fake
        .fail_next(BackendMethod::StopSandbox, Error::internal(HOSTILE));
    scope.sandboxes().stop(&failed.sandbox).await.unwrap_err();
    failed
}

#[tokio::test]
async fn strangers_see_health_and_counts_alone() {
    let site = Site::new().await;
    let Failed { sandbox, task } = failed(&site.node).await;
    let web = &site
        .node
        .gateway
        .scope(Owner::Kubernetes)
        .sandboxes()
        .list()
        .unwrap()[0];
    let id = web.id.to_string();
    let ip = web.details.ips[0].to_string();
    let secrets = ["shop/web", &id[..6], &ip, "gone", "jobs/train", "alert(1)"];
    let cookie = site.open().await;
    let page = site.get("/", &cookie).await.body;
    assert!(secrets.iter().all(|secret| page.contains(secret)), "{page}");
    for cookie in ["", "switchyard-00000000=", "a=b; switchyard-00000000=00"] {
        let page = site.get("/", cookie).await;
        assert_eq!(page.status, StatusCode::OK);
        assert!(
            page.body.contains(">runtime</th>") && page.body.contains("switchyard page"),
            "{}",
            page.body
        );
        for secret in secrets {
            assert!(
                !page.body.contains(secret),
                "strangers see {secret}: {}",
                page.body
            );
        }
        for path in [
            format!("/tasks/{task}"),
            format!("/sandboxes/{sandbox}"),
            format!("/sandboxes/{}", "0".repeat(64)),
            "/tasks/x".into(),
        ] {
            let page = site.get(&path, cookie).await;
            assert_eq!(page.status, StatusCode::FORBIDDEN, "{path}");
            assert!(
                !page.body.contains("hunter2") && !page.body.contains("alert"),
                "{path}"
            );
        }
    }
}

#[tokio::test]
async fn link_opens_one_session_which_lasts_until_it_is_ended() {
    let site = Site::new().await;
    let link = site.link(0).await.unwrap();
    // What a scanner of links asks first uses nothing up.
    let head = site.ask(Method::HEAD, &link, "").await;
    assert_eq!(
        (head.status, head.headers[ALLOW].as_bytes()),
        (StatusCode::METHOD_NOT_ALLOWED, &b"GET"[..])
    );
    let entered = site.get(&link, "").await;
    assert_eq!(entered.status, StatusCode::OK);
    let again = site.get(&link, "").await;
    assert_eq!(again.status, StatusCode::FORBIDDEN);
    assert!(again.body.contains("was used before") && !again.headers.contains_key(SET_COOKIE));

    let cookie = site.open().await;
    let page = site.get("/", &format!("other=1; {cookie}")).await;
    assert!(
        page.body.contains("shop/web") && page.body.contains("gone"),
        "{}",
        page.body
    );
    let (name, value) = cookie.split_once('=').unwrap();
    for wrong in [
        format!("{name}x={value}"),
        format!("{name}={}", &value[1..]),
        format!("{name}={value}0"),
    ] {
        assert!(
            !site.get("/", &wrong).await.body.contains("shop/web"),
            "{wrong}"
        );
    }
    // Another program of the same host may have cookies of any bytes.
    let beside = [
        b"theme=\xc3\xa9; ".as_slice(),
        cookie.as_bytes(),
        b"; x=\xff",
    ]
    .concat();
    let beside = http::HeaderValue::from_bytes(&beside).unwrap();
    let request = Request::get("/")
        .header(HOST, "localhost:9640")
        .header(COOKIE, beside);
    assert!(
        site.send(request.body(Body::empty()).unwrap())
            .await
            .body
            .contains("shop/web")
    );
    // Not by a GET, which a link of another page could cause.
    assert_eq!(
        site.get("/leave", &cookie).await.status,
        StatusCode::METHOD_NOT_ALLOWED
    );
    // Nor by a form of another origin, with which browsers send no cookie.
    let foreign = site.ask(Method::POST, "/leave", "").await;
    assert!(foreign.status == StatusCode::SEE_OTHER && !foreign.headers.contains_key(SET_COOKIE));
    assert!(site.get("/", &cookie).await.body.contains("shop/web"));
    let left = site.ask(Method::POST, "/leave", &cookie).await;
    assert_eq!(left.status, StatusCode::SEE_OTHER);
    assert!(
        left.headers[SET_COOKIE]
            .to_str()
            .unwrap()
            .ends_with("; Max-Age=0")
    );
    assert!(!site.get("/", &cookie).await.body.contains("shop/web"));
}

#[tokio::test]
async fn root_alone_gets_links() {
    let site = Site::new().await;
    let member = nix::unistd::geteuid().as_raw() + 1000;
    assert_eq!(site.link(member).await.unwrap_err(), StatusCode::FORBIDDEN);
    let request = Request::post("/v1/page")
        .header(HOST, "localhost")
        .body(Body::empty())
        .unwrap();
    assert_eq!(site.send(request).await.status, StatusCode::NOT_FOUND);
}

#[tokio::test]
async fn page_is_served_under_the_names_of_the_node_alone() {
    let site = Site::new().await;
    let cookie = site.open().await;
    for (host, expected) in [
        ("localhost", StatusCode::OK),
        ("localhost:1", StatusCode::OK),
        ("127.0.0.1:8080", StatusCode::OK),
        ("[::1]:9640", StatusCode::OK),
        ("10.1.2.3:9640", StatusCode::MISDIRECTED_REQUEST),
        ("evil.example", StatusCode::MISDIRECTED_REQUEST),
        ("evil.example:9640", StatusCode::MISDIRECTED_REQUEST),
        ("a b", StatusCode::BAD_REQUEST),
    ] {
        for path in ["/", "/enter?ticket=0", "/style.css"] {
            let request = Request::get(path)
                .header(HOST, host)
                .header(COOKIE, &cookie);
            let answer = site.send(request.body(Body::empty()).unwrap()).await;
            let expected = match (path, expected) {
                ("/enter?ticket=0", StatusCode::OK) => StatusCode::FORBIDDEN,
                (_, expected) => expected,
            };
            assert_eq!(answer.status, expected, "{host} {path}");
            assert!(
                expected == StatusCode::OK || !answer.body.contains("shop/web"),
                "{host}"
            );
        }
    }
    let bare = Request::get("/").body(Body::empty()).unwrap();
    assert_eq!(site.send(bare).await.status, StatusCode::BAD_REQUEST);
}

#[tokio::test]
async fn browsers_are_told_to_keep_the_page_to_itself() {
    let site = Site::new().await;
    let cookie = site.open().await;
    for path in ["/", "/style.css", "/enter?ticket=x", "/tasks/x"] {
        let answer = site.get(path, &cookie).await;
        let policy = answer.headers[CONTENT_SECURITY_POLICY].to_str().unwrap();
        for part in [
            "default-src 'none'",
            "style-src 'self'",
            "frame-ancestors 'none'",
            "form-action 'self'",
            "base-uri 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        for (name, value) in [
            ("cache-control", "no-store"),
            ("x-content-type-options", "nosniff"),
            ("referrer-policy", "no-referrer"),
            ("x-frame-options", "DENY"),
        ] {
            assert_eq!(answer.headers[name], value, "{path}");
        }
    }
}

#[tokio::test]
async fn object_is_shown_without_secrets_and_hostile_text_is_text() {
    let site = Site::of(TestNode::new().await);
    let Failed { sandbox, task } = failed(&site.node).await;
    let cookie = site.open().await;
    std::fs::write(
        site.node.dir.path().join("0.log"),
        format!(
            "2026-11-26T10:00:00Z stdout F {}\n",
            HOSTILE.replace('\n', " ")
        ),
    )
    .unwrap();
    for path in [format!("/tasks/{task}"), format!("/sandboxes/{sandbox}")] {
        let page = site.get(&format!("{path}?refresh=10"), &cookie).await;
        assert_eq!(page.status, StatusCode::OK, "{}", page.body);
        assert!(
            page.body.contains("http-equiv=\"refresh\" content=\"10\""),
            "{}",
            page.body
        );
        for hostile in ["<script", "\u{202e}", "\u{1b}", "alert(1)</script"] {
            assert!(!page.body.contains(hostile), "{hostile:?}: {}", page.body);
        }
        for secret in ["TOKEN_NAME", "hunter2", "label-key", "label-value"] {
            assert!(!page.body.contains(secret), "{secret}: {}", page.body);
        }
    }
    let page = site.get(&format!("/tasks/{task}"), &cookie).await.body;
    assert!(
        page.contains("exited (128)") && !page.contains("http-equiv"),
        "{page}"
    );
    assert!(
        page.contains("1.0 MiB") && page.contains("never started"),
        "{page}"
    );
    let places = "title, heading, name of the request, reason and log";
    assert_eq!(page.matches("alert(1)").count(), 5, "{places}: {page}");
    let page = site
        .get(&format!("/sandboxes/{sandbox}"), &cookie)
        .await
        .body;
    let places = "title, heading, name of the request, reason and task";
    assert_eq!(page.matches("alert(1)").count(), 5, "{places}: {page}");
    // The kind has to be right, and the id whole.
    for path in [
        format!("/sandboxes/{task}"),
        format!("/tasks/{}", &task[..63]),
        "/tasks/%2e%2e".into(),
    ] {
        assert_eq!(
            site.get(&path, &cookie).await.status,
            StatusCode::NOT_FOUND,
            "{path}"
        );
    }
}

#[tokio::test]
async fn task_that_does_not_end_is_shown_with_the_process_that_holds_it_up() {
    let node = TestNode::new().await;
    let _hold = node.fake.hold(BackendMethod::WaitTask);
    let task = node.run(endless(Owner::Nomad, "jobs/train")).await;
    let wait = KernelWait {
        pid: 812,
        name: HOSTILE.to_owned(),
        thread: 812,
        state: 'D',
        channel: Some("nfs_wait_bit_killable".to_owned()),
    };
    let blocker = Blocker {
        wait,
        call: None,
        mount: None,
    };
    node.fake.set_task_blockers(task.id, vec![blocker]);
    let site = Site::of(node);
    let cookie = site.open().await;
    let scope = site.node.gateway.scope(Owner::Nomad);
    let id = task.id.to_string();
    let stop = scope.tasks().stop(&id, Duration::ZERO);
    let page = async {
        while !matches!(
            scope.tasks().find(&id).unwrap().state,
            TaskState::Stopping { .. }
        ) {
            tokio::task::yield_now().await;
        }
        site.get(&format!("/tasks/{id}"), &cookie).await.body
    };
    let page = tokio::select! {
        page = page => page,
        stopped = stop => panic!("it ended: {stopped:?}"),
    };
    let text = "waits in the kernel in nfs_wait_bit_killable";
    assert!(
        page.contains(text) && !page.contains("<script>alert"),
        "{page}"
    );
}

#[tokio::test(start_paused = true)]
async fn page_does_not_wait_for_a_reading_that_hangs() {
    let site = Site::new().await;
    let cookie = site.open().await;
    let hold = site.node.fake.hold(BackendMethod::TaskMetrics);
    let begin = Instant::now();
    let page = site.get("/", &cookie).await.body;
    assert!(page.contains("What tasks use is being read"), "{page}");
    // The clock of the test advances only by what is waited for.
    assert!(
        begin.elapsed() < Duration::from_secs(1),
        "{:?}",
        begin.elapsed()
    );
    drop(hold);
    // The reading that hangs has a time limit.
    sleep(Duration::from_secs(10)).await;
    let page = site.get("/", &cookie).await.body;
    assert!(page.contains("Processor time is the share"), "{page}");
}

#[tokio::test]
async fn a_thousand_tasks_are_listed_page_by_page_and_by_owner() {
    let node = TestNode::new().await;
    for number in 0..1000 {
        let owner = if number < 750 {
            Owner::Kubernetes
        } else {
            Owner::Nomad
        };
        let name = format!("s{number:04}");
        let sandbox = node.sandbox(specs::sandbox(owner, &name)).await;
        node.start(&sandbox, endless(owner, &format!("{name}/{HOSTILE}")))
            .await;
    }
    let site = Site::of(node);
    let cookie = site.open().await;
    let first = site.get("/", &cookie).await.body;
    assert!(
        first.contains("Sandboxes 1 to 100 of 1000") && first.contains("Page 1 of 10"),
        "{first}"
    );
    assert!(first.contains("s0099") && !first.contains("s0100") && !first.contains("<script"));
    assert!(
        first.contains("kubernetes (750)") && first.contains("nomad (250)"),
        "{first}"
    );
    let last = site
        .get("/?owner=nomad&page=9&refresh=30", &cookie)
        .await
        .body;
    assert!(
        last.contains("Sandboxes 201 to 250 of 250") && last.contains("s0999"),
        "{last}"
    );
    assert!(
        last.contains("href=\"/?owner=nomad&#38;page=2&#38;refresh=30\""),
        "{last}"
    );
    // A number of seconds is taken as near as it can be.
    let slow = site.get("/?refresh=70000", &cookie).await.body;
    assert!(
        slow.contains("http-equiv=\"refresh\" content=\"3600\""),
        "{slow}"
    );
    for wrong in [
        "/?owner=root",
        "/?page=-1",
        "/?page=x",
        "/?refresh=x",
        "/?what=1",
    ] {
        assert_eq!(
            site.get(wrong, &cookie).await.status,
            StatusCode::BAD_REQUEST,
            "{wrong}"
        );
    }
}
