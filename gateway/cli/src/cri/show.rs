//! Shows the runtime's version, conditions, images, pods and containers.

use std::process::ExitCode;

use jiff::Timestamp;
use serde_json::{Value, json};
use switchyard_operator_api::text::{age, short, size};
use switchyard_proto::cri::v1 as cri;

use super::{Client, CriError, refused};
use crate::output::{Format, print, print_json, table};

impl Client {
    /// Shows the runtime's name and version.
    pub(super) async fn version(&mut self) -> Result<(), CriError> {
        let request = self.request(cri::VersionRequest {
            version: "v1".into(),
        });
        let cri::VersionResponse {
            version,
            runtime_name,
            runtime_version,
            runtime_api_version,
        } = self
            .runtime
            .version(request)
            .await
            .map_err(refused("Version"))?
            .into_inner();
        match self.output {
            Format::Json => print_json(&json!({
                "version": version,
                "runtime_name": runtime_name,
                "runtime_version": runtime_version,
                "runtime_api_version": runtime_api_version,
            }))?,
            Format::Text => print(format!(
                "{runtime_name} {runtime_version} (CRI {runtime_api_version})\n"
            ))?,
        }
        Ok(())
    }

    /// Shows the runtime's conditions and handlers.
    pub(super) async fn status(&mut self) -> Result<ExitCode, CriError> {
        let request = self.request(cri::StatusRequest { verbose: false });
        let answer = self
            .runtime
            .status(request)
            .await
            .map_err(refused("Status"))?
            .into_inner();
        let conditions = answer.status.unwrap_or_default().conditions;
        let ready = conditions.iter().all(|condition| condition.status);
        let handlers: Vec<_> = answer
            .runtime_handlers
            .into_iter()
            .map(|handler| handler.name)
            .collect();
        match self.output {
            Format::Json => {
                let conditions: Vec<_> = conditions
                    .iter()
                    .map(|c| json!({ "type": c.r#type, "status": c.status, "reason": c.reason, "message": c.message }))
                    .collect();
                print_json(
                    &json!({ "ready": ready, "conditions": conditions, "handlers": handlers }),
                )?;
            }
            Format::Text => {
                let rows: Vec<_> = conditions
                    .into_iter()
                    .map(|c| [c.r#type, c.status.to_string(), c.reason, c.message])
                    .collect();
                let handlers: Vec<_> = handlers
                    .iter()
                    .map(|name| if name.is_empty() { "(default)" } else { name })
                    .collect();
                let table = table(["CONDITION", "STATUS", "REASON", "MESSAGE"], &rows);
                print(format!("{table}handlers: {}\n", handlers.join(", ")))?;
            }
        }
        Ok(if ready {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Pulls an image and shows its reference by digest.
    pub(super) async fn pull_and_show(&mut self, image: &str) -> Result<(), CriError> {
        let pulled = self.pull(image).await?;
        self.done("pulled", &pulled)
    }

    /// Removes an image.
    pub(super) async fn remove_image(&mut self, image: String) -> Result<(), CriError> {
        let request = self.request(cri::RemoveImageRequest {
            image: Some(super::image_spec(&image)),
        });
        self.images
            .remove_image(request)
            .await
            .map_err(refused("RemoveImage"))?;
        self.done("removed", &image)
    }

    /// Lists images.
    pub(super) async fn list_images(&mut self) -> Result<(), CriError> {
        let request = self.request(cri::ListImagesRequest::default());
        let images = self
            .images
            .list_images(request)
            .await
            .map_err(refused("ListImages"))?
            .into_inner()
            .images;
        match self.output {
            Format::Json => {
                let images: Vec<_> = images
                    .iter()
                    .map(|image| {
                        json!({
                            "id": image.id,
                            "tags": image.repo_tags,
                            "digests": image.repo_digests,
                            "size_bytes": image.size,
                            "pinned": image.pinned,
                        })
                    })
                    .collect();
                print_json(&images)?;
            }
            Format::Text => {
                let rows: Vec<_> = images
                    .iter()
                    .map(|image| {
                        let id = image.id.strip_prefix("sha256:").unwrap_or(&image.id);
                        let names = if image.repo_tags.is_empty() {
                            &image.repo_digests
                        } else {
                            &image.repo_tags
                        };
                        [names.join(","), short(id), size(image.size)]
                    })
                    .collect();
                print(table(["IMAGE", "ID", "SIZE"], &rows))?;
            }
        }
        Ok(())
    }

    /// Lists pods.
    pub(super) async fn list_pods(&mut self) -> Result<(), CriError> {
        let request = self.request(cri::ListPodSandboxRequest::default());
        let answer = self
            .runtime
            .list_pod_sandbox(request)
            .await
            .map_err(refused("ListPodSandbox"))?;
        let pods = answer.into_inner().items;
        match self.output {
            Format::Json => {
                let pods: Vec<Value> = pods
                    .iter()
                    .map(|pod| {
                        let meta = pod.metadata.clone().unwrap_or_default();
                        json!({
                            "id": pod.id,
                            "name": meta.name,
                            "namespace": meta.namespace,
                            "uid": meta.uid,
                            "attempt": meta.attempt,
                            "state": pod_state(pod),
                            "created_at": stamp(pod.created_at),
                            "handler": pod.runtime_handler,
                        })
                    })
                    .collect();
                print_json(&pods)?;
            }
            Format::Text => {
                let now = Timestamp::now();
                let rows: Vec<_> = pods
                    .iter()
                    .map(|pod| {
                        let meta = pod.metadata.clone().unwrap_or_default();
                        let created = age(&stamp(pod.created_at), now);
                        [
                            short(&pod.id),
                            meta.name,
                            meta.namespace,
                            pod_state(pod).into(),
                            created,
                        ]
                    })
                    .collect();
                print(table(["POD", "NAME", "NAMESPACE", "STATE", "AGE"], &rows))?;
            }
        }
        Ok(())
    }

    /// Lists containers, including those that have exited.
    pub(super) async fn list_containers(&mut self) -> Result<(), CriError> {
        let request = self.request(cri::ListContainersRequest::default());
        let answer = self
            .runtime
            .list_containers(request)
            .await
            .map_err(refused("ListContainers"))?;
        let containers = answer.into_inner().containers;
        match self.output {
            Format::Json => {
                let containers: Vec<Value> = containers
                    .iter()
                    .map(|container| {
                        let meta = container.metadata.clone().unwrap_or_default();
                        json!({
                            "id": container.id,
                            "pod": container.pod_sandbox_id,
                            "name": meta.name,
                            "attempt": meta.attempt,
                            "image": image_of(container),
                            "state": container_state(container),
                            "created_at": stamp(container.created_at),
                        })
                    })
                    .collect();
                print_json(&containers)?;
            }
            Format::Text => {
                let now = Timestamp::now();
                let rows: Vec<_> = containers
                    .iter()
                    .map(|container| {
                        [
                            short(&container.id),
                            short(&container.pod_sandbox_id),
                            container.metadata.clone().unwrap_or_default().name,
                            container_state(container).into(),
                            age(&stamp(container.created_at), now),
                            image_of(container),
                        ]
                    })
                    .collect();
                print(table(
                    ["CONTAINER", "POD", "NAME", "STATE", "AGE", "IMAGE"],
                    &rows,
                ))?;
            }
        }
        Ok(())
    }
}

/// The image reference as the client gave it, if the runtime reports it.
fn image_of(container: &cri::Container) -> String {
    let spec = container.image.clone().unwrap_or_default();
    [
        spec.user_specified_image,
        spec.image,
        container.image_ref.clone(),
    ]
    .into_iter()
    .find(|name| !name.is_empty())
    .unwrap_or_default()
}

fn pod_state(pod: &cri::PodSandbox) -> &'static str {
    match pod.state() {
        cri::PodSandboxState::SandboxReady => "ready",
        cri::PodSandboxState::SandboxNotready => "not ready",
    }
}

fn container_state(container: &cri::Container) -> &'static str {
    match container.state() {
        cri::ContainerState::ContainerCreated => "created",
        cri::ContainerState::ContainerRunning => "running",
        cri::ContainerState::ContainerExited => "exited",
        cri::ContainerState::ContainerUnknown => "unknown",
    }
}

/// CRI's nanoseconds since 1970 as RFC 3339; empty for 0.
fn stamp(nanoseconds: i64) -> String {
    if nanoseconds == 0 {
        return String::new();
    }
    Timestamp::from_nanosecond(nanoseconds.into())
        .map(|at| format!("{at:.0}"))
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339() {
        assert_eq!(stamp(0), "");
        assert_eq!(stamp(1_700_000_000_000_000_000), "2023-11-14T22:13:20Z");
    }
}
