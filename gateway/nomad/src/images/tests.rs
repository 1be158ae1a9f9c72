//! Tests of progressing and stalled pulls, and of the release of images.

use parking_lot::Mutex;
use switchyard_core::gateway::{Gateway, Limits};
use switchyard_core::ledger::MemoryStore;
use switchyard_core::operation::{EndedOperation, OperationObserver, Operations, Outcome};
use switchyard_fake::{BUSYBOX, Fake, Method};

use super::*;
use crate::configs::session;
use crate::events::Events;
use crate::plugin_config::{GcConfig, PluginConfig};
use crate::session::Sessions;

fn wish() -> ImageRequest {
    ImageRequest {
        reference: BUSYBOX.into(),
        load: None,
        always: false,
        timeout: Duration::from_secs(300),
        activity_timeout: Duration::from_secs(120),
        credentials: None,
        soft_fail: false,
    }
}

/// Notes how operations have ended.
#[derive(Default)]
struct Outcomes(Mutex<Vec<String>>);

impl OperationObserver for Outcomes {
    fn operation_ended(&self, operation: &EndedOperation<'_>) {
        let outcome = match operation.outcome {
            Outcome::Succeeded => "ok",
            Outcome::Failed(error) => error.kind().as_str(),
            Outcome::Dropped => "dropped",
        };
        self.0.lock().push(format!("{} {outcome}", operation.kind));
    }
}

struct ImagesFixture {
    fake: Fake,
    outcomes: Arc<Outcomes>,
    gateway: Gateway,
    images: Images,
    keep: Arc<ImageGc>,
    sessions: Sessions,
    teller: TaskEventSender,
    dir: tempfile::TempDir,
}

async fn fixture() -> ImagesFixture {
    let fake = Fake::with_busybox();
    let operations = Operations::default();
    let outcomes = Arc::new(Outcomes::default());
    operations.observe(Arc::clone(&outcomes) as _);
    let leases = Arc::new(MemoryStore::default());
    let gateway = Gateway::with_leases(
        Arc::new(fake.clone()),
        Limits::default(),
        leases,
        operations,
    );
    gateway.recover().await.expect("the fake recovers");
    let scope = gateway.scope(Owner::Nomad);
    let sessions = Sessions::default();
    let keep = Arc::new(ImageGc::new(scope.clone(), sessions.clone()));
    let request = switchyard_proto::nomad::drivers::proto::TaskConfig::default();
    let teller = Events::default().sender_for("1", &request);
    let dir = tempfile::tempdir().expect("there is room");
    let looks = Arc::new(BlockingPool::new(1, switchyard_core::blocking_pool::LIMIT));
    ImagesFixture {
        fake,
        outcomes,
        gateway,
        images: Images::new(scope, Arc::clone(&keep), looks),
        keep,
        sessions,
        teller,
        dir,
    }
}

impl ImagesFixture {
    async fn get(&self, wish: &ImageRequest) -> Result<ImageId> {
        let place = ("allocation a".to_owned(), self.dir.path());
        self.images
            .get(wish, place, "", &AuthConfig::default(), &self.teller)
            .await
    }

    async fn has(&self) -> bool {
        self.images
            .scope
            .images()
            .find(BUSYBOX)
            .await
            .expect("it can be read")
            .is_some()
    }
}

#[tokio::test]
async fn present_image_is_pulled_again_only_on_force_pull() {
    let fixture = fixture().await;
    fixture.get(&wish()).await.expect("the registry has it");
    fixture.get(&wish()).await.expect("the node has it");
    assert_eq!(fixture.fake.count(Method::Pull), 1);
    fixture
        .get(&ImageRequest {
            always: true,
            ..wish()
        })
        .await
        .expect("the registry has it");
    assert_eq!(fixture.fake.count(Method::Pull), 2);
}

#[tokio::test]
async fn missing_image_error_has_the_agents_expected_text() {
    let fixture = fixture().await;
    let missing = ImageRequest {
        reference: "reg.example/no".into(),
        ..wish()
    };
    let error = fixture.get(&missing).await.expect_err("nobody has it");
    assert!(
        error
            .report()
            .contains("Error: image reg.example/no not found"),
        "{error:?}"
    );
}

#[test]
fn what_a_registry_may_have_later_is_pulled_again() {
    let known = "reg.example/web:1";
    for (error, reference, kind) in [
        // Not pushed yet.
        (
            Error::not_found("registry"),
            known,
            ErrorKind::FailedPrecondition,
        ),
        // Pushed as what is no image, or too large.
        (
            Error::invalid("registry", "x"),
            known,
            ErrorKind::FailedPrecondition,
        ),
        // Not for this platform yet.
        (
            Error::unimplemented("x"),
            known,
            ErrorKind::FailedPrecondition,
        ),
        // No right yet, and temporary ones anyway.
        (
            Error::new(ErrorKind::Unauthenticated, "x"),
            known,
            ErrorKind::Unauthenticated,
        ),
        (Error::unavailable("x"), known, ErrorKind::Unavailable),
        (Error::internal("x"), known, ErrorKind::Internal),
        // No registry will ever have it.
        (
            Error::invalid("image", "x"),
            "x/UPPER:1",
            ErrorKind::InvalidArgument,
        ),
    ] {
        let shown = error.to_string();
        let reworded = reworded(error, reference);
        assert_eq!(reworded.kind(), kind, "{shown} of {reference}");
        let report = reworded.report();
        assert!(
            report.contains(reference) && report.ends_with(&shown),
            "{report}"
        );
        let status = crate::status::status(&reworded);
        assert_eq!(
            crate::status::is_permanent(&status),
            kind == ErrorKind::InvalidArgument,
            "{shown} of {reference}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn stalled_pull_ends_early_and_progressing_one_at_its_timeout() {
    let fixture = fixture().await;
    let _held = fixture.fake.hold(Method::Pull);
    let began = Instant::now();
    let error = fixture.get(&wish()).await.expect_err("it stands still");
    assert!(
        error.report().contains("pull_activity_timeout"),
        "{error:?}"
    );
    assert_eq!(began.elapsed().as_secs(), 120);

    let began = Instant::now();
    let fake = fixture.fake.clone();
    let moving = tokio::spawn(async move {
        for bytes_done in 0.. {
            fake.set_progress(PullProgress {
                layers: 1,
                layers_done: 0,
                bytes: 1 << 30,
                bytes_done,
            });
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    });
    let error = fixture.get(&wish()).await.expect_err("it never ends");
    assert!(error.report().contains("image_pull_timeout"), "{error:?}");
    assert_eq!(began.elapsed().as_secs(), 300);
    moving.abort();
    assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
    // They failed, for metrics and the log: a pull that is given up by its caller is nobody's fault.
    assert_eq!(
        *fixture.outcomes.0.lock(),
        ["pull_image deadline_exceeded"; 2]
    );
}

#[test]
fn pull_progress_is_reported_periodically() {
    let begun = Instant::now();
    let mut watch = PullMonitor::new(begun);
    let later = begun + EVENT_INTERVAL;
    watch.update(
        Some(PullProgress {
            layers: 3,
            layers_done: 1,
            bytes: 300 << 20,
            bytes_done: 100 << 20,
        }),
        later,
    );
    assert_eq!(watch.progress_message(begun + POLL), None);
    let text = "Image pull progress: Pulled 1/3 layers (100/300 MiB) - est 240s remaining";
    assert_eq!(watch.progress_message(later).as_deref(), Some(text));
    assert_eq!(watch.progress_message(later + POLL), None);
}

#[test]
fn unpacked_layers_count_as_progress() {
    let begun = Instant::now();
    let mut watch = PullMonitor::new(begun);
    let all = Some(PullProgress {
        layers: 1,
        layers_done: 1,
        bytes: 5,
        bytes_done: 5,
    });
    for seconds in 0..200 {
        watch.update(all, begun + Duration::from_secs(seconds));
    }
    assert!(
        watch
            .check_timeouts(&wish(), begun + Duration::from_secs(200))
            .is_ok()
    );
}

#[tokio::test(start_paused = true)]
async fn unused_image_is_released_after_its_delay_unless_reused() {
    let fixture = fixture().await;
    let keep = Arc::clone(&fixture.keep);
    let _tending =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { keep.run().await }));
    let image = fixture.get(&wish()).await.expect("the registry has it");
    fixture.keep.schedule(&image, Duration::from_secs(180));
    tokio::time::sleep(Duration::from_secs(179)).await;
    fixture.get(&wish()).await.expect("the node has it");
    tokio::time::sleep(Duration::from_secs(600)).await;
    assert!(fixture.has().await);
    fixture.keep.schedule(&image, Duration::from_secs(180));
    tokio::time::sleep(Duration::from_secs(181)).await;
    assert!(!fixture.has().await);
}

#[tokio::test(start_paused = true)]
async fn images_stay_while_an_agent_disables_image_cleanup() {
    let fixture = fixture().await;
    let keep = Arc::clone(&fixture.keep);
    let _tending =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { keep.run().await }));
    let image = fixture.get(&wish()).await.expect("the registry has it");
    let gc = GcConfig {
        image: false,
        ..Default::default()
    };
    let keeper = fixture.sessions.open(session(PluginConfig {
        gc,
        ..Default::default()
    }));
    fixture.keep.schedule(&image, Duration::from_secs(5));
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(fixture.has().await);
    drop(keeper);
    fixture
        .keep
        .schedule_unused(Duration::from_secs(5))
        .await
        .expect("they can be read");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!fixture.has().await);
}

#[tokio::test(start_paused = true)]
async fn pending_image_releases_of_a_predecessor_are_found() {
    let fixture = fixture().await;
    fixture.get(&wish()).await.expect("the registry has it");
    let keep = Arc::clone(&fixture.keep);
    let _tending =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { keep.run().await }));
    fixture
        .keep
        .schedule_unused(Duration::from_secs(5))
        .await
        .expect("they can be read");
    tokio::time::sleep(Duration::from_secs(6)).await;
    assert!(!fixture.has().await);
}

#[tokio::test]
async fn image_archive_must_be_in_the_task_directory() {
    let fixture = fixture().await;
    std::fs::write(fixture.dir.path().join("image.tar"), BUSYBOX).expect("there is room");
    let load = |path: &str| ImageRequest {
        load: Some(path.into()),
        ..wish()
    };
    fixture.get(&load("image.tar")).await.expect("it is there");
    assert_eq!(
        (
            fixture.fake.count(Method::Load),
            fixture.fake.count(Method::Pull)
        ),
        (1, 0)
    );
    std::os::unix::fs::symlink("/etc/passwd", fixture.dir.path().join("out.tar"))
        .expect("there is room");
    for wrong in ["missing.tar", "out.tar"] {
        let refused = fixture
            .get(&load(wrong))
            .await
            .expect_err("it cannot be read");
        assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused:?}");
    }
}

#[tokio::test]
async fn load_that_exceeds_its_timeout_has_failed() {
    let fixture = fixture().await;
    std::fs::write(fixture.dir.path().join("image.tar"), BUSYBOX).expect("there is room");
    let _held = fixture.fake.hold(Method::Load);
    let load = ImageRequest {
        load: Some("image.tar".into()),
        timeout: Duration::from_millis(50),
        ..wish()
    };
    let error = fixture.get(&load).await.expect_err("the runtime hangs");
    assert!(error.report().contains("image_pull_timeout"), "{error:?}");
    assert_eq!(*fixture.outcomes.0.lock(), ["load_image deadline_exceeded"]);
}

#[tokio::test(start_paused = true)]
async fn image_not_pulled_by_nomad_is_not_released() {
    let fixture = fixture().await;
    let kubernetes = fixture.gateway.scope(Owner::Kubernetes);
    let request = PullRequest {
        reference: BUSYBOX.into(),
        credentials: switchyard_core::image::Credentials::Anonymous,
        handler: String::new(),
        owner: Owner::Kubernetes,
    };
    kubernetes
        .images()
        .pull(&request)
        .await
        .expect("the registry has it");
    let image = fixture.get(&wish()).await.expect("the node has it");
    let keep = Arc::clone(&fixture.keep);
    let _tending =
        tokio_util::task::AbortOnDropHandle::new(tokio::spawn(async move { keep.run().await }));
    fixture.keep.schedule(&image, Duration::from_secs(5));
    tokio::time::sleep(Duration::from_secs(60)).await;
    assert_eq!(fixture.fake.count(Method::RemoveImage), 0);
    assert!(fixture.has().await);
}
