//! Random sequences of calls, with texts of any length and content and numbers at every edge, compared with a
//! model of the created objects: no call fails with an internal error or without an answer, lists agree with
//! the model, and every label is returned unchanged.
//!
//! `PROPTEST_CASES` makes it run longer; `tests/fuzz` does.

mod calls;
mod values;

use std::collections::BTreeMap;
use std::future::Future;
use std::time::Duration;

use proptest::prelude::*;
use switchyard_core::STATUS_TEXT_MAX;
use switchyard_proto::cri::v1 as cri;
use tonic::{Code, Status};

use crate::support::ServiceFixture;
use calls::call;

/// The timeout of a call; calls take milliseconds.
const LIMIT: Duration = Duration::from_secs(30);

/// The codes for requests that cannot be served. `Unknown` and `Internal` would be errors of the gateway or
/// of the transport.
const REFUSALS: [Code; 6] = [
    Code::InvalidArgument,
    Code::NotFound,
    Code::AlreadyExists,
    Code::FailedPrecondition,
    Code::Unimplemented,
    Code::ResourceExhausted,
];

/// The created objects, as requested, by id.
#[derive(Debug, Default)]
struct Model {
    pods: BTreeMap<String, cri::PodSandboxConfig>,
    /// With the id of their pod.
    containers: BTreeMap<String, (String, cri::ContainerConfig)>,
}

/// The answer to a call; `None` if it is refused.
async fn asked<T>(what: &str, answer: impl Future<Output = Result<T, Status>>) -> Option<T> {
    match tokio::time::timeout(LIMIT, answer)
        .await
        .unwrap_or_else(|_| panic!("{what} is not answered"))
    {
        Ok(answer) => Some(answer),
        Err(status) => {
            assert!(REFUSALS.contains(&status.code()), "{what}: {status:?}");
            let length = status.message().len();
            assert!(
                (1..=STATUS_TEXT_MAX).contains(&length),
                "{what}: {:?} in {length} bytes",
                status.code()
            );
            // The text of a failed connection. Two letters of it are in some of the random texts.
            assert!(
                !status.message().contains("h2 protocol error"),
                "{what}: {status:?}"
            );
            None
        }
    }
}

// === impl Model ===

impl Model {
    /// The id of a target: one of these objects, or a text that need not be an id.
    fn pick<T>(objects: &BTreeMap<String, T>, target: &calls::Target) -> String {
        match target {
            calls::Target::Known(number) if !objects.is_empty() => objects
                .keys()
                .nth(number % objects.len())
                .cloned()
                .unwrap_or_default(),
            calls::Target::Known(_) => "none".to_owned(),
            calls::Target::Text(text) => text.clone(),
        }
    }

    fn made_pod(&mut self, id: String, config: cri::PodSandboxConfig) {
        let known = self.pods.entry(id).or_insert_with(|| config.clone());
        assert_eq!(*known, config, "a name stands for one request");
    }

    fn made_container(&mut self, id: String, pod: String, config: cri::ContainerConfig) {
        let new = (pod, config);
        assert_eq!(
            *self.containers.entry(id).or_insert_with(|| new.clone()),
            new
        );
    }

    fn removed_pod(&mut self, id: &str) {
        self.pods.remove(id);
        self.containers.retain(|_, (pod, _)| pod != id);
    }
}

/// Checks that lists show what was created, as requested.
async fn compare(node: &mut ServiceFixture, model: &Model) {
    let list = cri::ListPodSandboxRequest::default();
    let pods = node
        .runtime
        .list_pod_sandbox(list)
        .await
        .expect("pods can be listed")
        .into_inner()
        .items;
    assert_eq!(
        sorted(&pods, |pod| &pod.id),
        model.pods.keys().collect::<Vec<_>>()
    );
    for pod in &pods {
        let asked = &model.pods[&pod.id];
        assert_eq!(
            (&pod.labels, &pod.annotations),
            (&asked.labels, &asked.annotations)
        );
        assert_eq!(pod.metadata, asked.metadata);
    }
    let list = cri::ListContainersRequest::default();
    let containers = node
        .runtime
        .list_containers(list)
        .await
        .expect("they can be listed")
        .into_inner();
    let containers = containers.containers;
    assert_eq!(
        sorted(&containers, |container| &container.id),
        model.containers.keys().collect::<Vec<_>>()
    );
    for container in &containers {
        let (pod, asked) = &model.containers[&container.id];
        assert_eq!(
            (&container.labels, &container.annotations),
            (&asked.labels, &asked.annotations)
        );
        assert_eq!(
            (&container.metadata, &container.pod_sandbox_id),
            (&asked.metadata, pod)
        );
        let status = node.status(&container.id).await.expect("it is there");
        assert_eq!(
            (&status.labels, &status.annotations),
            (&asked.labels, &asked.annotations)
        );
    }
}

fn sorted<'a, T>(list: &'a [T], id: impl Fn(&'a T) -> &'a String) -> Vec<&'a String> {
    let mut ids: Vec<_> = list.iter().map(id).collect();
    ids.sort();
    ids
}

fn cases() -> u32 {
    std::env::var("PROPTEST_CASES")
        .ok()
        .and_then(|cases| cases.parse().ok())
        .unwrap_or(48)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: cases(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn hostile_calls_are_rejected_or_done_without_side_effects(calls in prop::collection::vec(call(), 1..24)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let mut node = ServiceFixture::new().await;
            let mut model = Model::default();
            node.pull().await;
            for call in calls {
                Box::pin(call.make(&mut node, &mut model)).await;
                compare(&mut node, &model).await;
            }
            node.is_sound();
            for id in model.pods.keys() {
                let request = cri::RemovePodSandboxRequest { pod_sandbox_id: id.clone() };
                node.runtime.remove_pod_sandbox(request).await.expect("it can be removed");
            }
            assert_eq!(node.fake.remaining_objects(), Vec::<String>::new());
        });
    }
}
