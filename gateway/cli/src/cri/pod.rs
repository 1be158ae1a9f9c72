//! Pods: run, stop, remove; and commands in their containers.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use serde_json::json;
use switchyard_core::id::SandboxId;
use switchyard_linux::files::if_present;
use switchyard_proto::cri::v1 as cri;

use super::{Client, CriError, image_spec, refused};
use crate::output::{Format, print, print_error, print_json};

/// The default directory for logs; each pod gets a directory below it.
const LOG_DIR: &str = "/var/log/switchyard";

/// The annotation that names the log directory created for a pod, so that removal finds it.
const LOG_DIR_ANNOTATION: &str = "cli.switchyard/log-dir";

/// The pod to run.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    /// The pod's name.
    #[arg(long)]
    name: String,
    /// Use the host's network.
    #[arg(long)]
    host_network: bool,
    /// The runtime handler; the runtime's default if none is given.
    #[arg(long, value_name = "NAME", default_value = "")]
    handler: String,
    /// The log directory. Default: a new directory of the pod below /var/log/switchyard.
    #[arg(long, value_name = "DIR")]
    log_dir: Option<PathBuf>,
    /// The image.
    image: String,
    /// The command, instead of the image's own.
    #[arg(last = true)]
    command: Vec<String>,
}

/// The created pod and container.
struct Made {
    pod: String,
    container: String,
    ip: String,
}

impl Client {
    /// Pulls the image if it is absent, and runs it in a new pod. If the container does not start, the pod is
    /// removed.
    pub(super) async fn run(&mut self, args: RunArgs) -> Result<(), CriError> {
        if self.find_image(&args.image).await?.is_none() {
            self.pull(&args.image).await?;
        }
        let config = pod_config(&args)?;
        let request = self.request(cri::RunPodSandboxRequest {
            config: Some(config.clone()),
            runtime_handler: args.handler.clone(),
        });
        let pod = match self.runtime.run_pod_sandbox(request).await {
            Ok(answer) => answer.into_inner().pod_sandbox_id,
            Err(status) => {
                if let Some(logs) = config.annotations.get(LOG_DIR_ANNOTATION) {
                    // Made just now, and empty: that the pod was refused is what the caller has to know.
                    let _ = fs::remove_dir(logs);
                }
                return Err(refused("RunPodSandbox")(status));
            }
        };
        let made = match self.start_in(&pod, config, args).await {
            Ok(made) => made,
            Err(error) => {
                if let Err(left) = self.remove_pod(pod.clone()).await {
                    print_error(format!(
                        "switchyard: cannot remove pod {pod}, which remains: {left}\n"
                    ))?;
                }
                return Err(error);
            }
        };
        match self.output {
            Format::Json => {
                print_json(
                    &json!({ "pod": made.pod, "container": made.container, "ip": made.ip }),
                )?;
            }
            Format::Text => {
                print(format!(
                    "pod        {}\ncontainer  {}\nip         {}\n",
                    made.pod, made.container, made.ip
                ))?;
            }
        }
        Ok(())
    }

    async fn start_in(
        &mut self,
        pod: &str,
        sandbox_config: cri::PodSandboxConfig,
        args: RunArgs,
    ) -> Result<Made, CriError> {
        let config = cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: args.name,
                attempt: 0,
            }),
            image: Some(image_spec(&args.image)),
            command: args.command,
            log_path: "0.log".into(),
            linux: Some(cri::LinuxContainerConfig {
                security_context: Some(cri::LinuxContainerSecurityContext {
                    namespace_options: Some(namespaces(args.host_network)),
                    ..Default::default()
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        let request = self.request(cri::CreateContainerRequest {
            pod_sandbox_id: pod.to_owned(),
            config: Some(config),
            sandbox_config: Some(sandbox_config),
        });
        let created = self
            .runtime
            .create_container(request)
            .await
            .map_err(refused("CreateContainer"))?;
        let container = created.into_inner().container_id;
        let request = self.request(cri::StartContainerRequest {
            container_id: container.clone(),
        });
        self.runtime
            .start_container(request)
            .await
            .map_err(refused("StartContainer"))?;
        let ip = self.address_of(pod).await?;
        Ok(Made {
            pod: pod.to_owned(),
            container,
            ip,
        })
    }

    /// The pod's primary address; empty with the host's network.
    async fn address_of(&mut self, pod: &str) -> Result<String, CriError> {
        Ok(self.status_of(pod).await?.network.unwrap_or_default().ip)
    }

    async fn status_of(&mut self, pod: &str) -> Result<cri::PodSandboxStatus, CriError> {
        let request = self.request(cri::PodSandboxStatusRequest {
            pod_sandbox_id: pod.to_owned(),
            verbose: false,
        });
        let answer = self
            .runtime
            .pod_sandbox_status(request)
            .await
            .map_err(refused("PodSandboxStatus"))?;
        answer.into_inner().status.ok_or(CriError::Incomplete {
            call: "PodSandboxStatus",
            what: "a status",
        })
    }

    /// Runs a command, waits for its exit and prints its output.
    pub(super) async fn exec(
        &mut self,
        container: String,
        command: Vec<String>,
    ) -> Result<ExitCode, CriError> {
        // The call's deadline limits the command; CRI's own timeout would have to be shorter.
        let request = self.request(cri::ExecSyncRequest {
            container_id: container,
            cmd: command,
            timeout: 0,
        });
        let answer = self
            .runtime
            .exec_sync(request)
            .await
            .map_err(refused("ExecSync"))?
            .into_inner();
        match self.output {
            Format::Json => print_json(&json!({
                "stdout": String::from_utf8_lossy(&answer.stdout),
                "stderr": String::from_utf8_lossy(&answer.stderr),
                "exit_code": answer.exit_code,
            }))?,
            Format::Text => {
                print(&answer.stdout)?;
                print_error(&answer.stderr)?;
                if answer.exit_code != 0 {
                    print_error(format!(
                        "switchyard: the command ended with {}\n",
                        answer.exit_code
                    ))?;
                }
            }
        }
        Ok(if answer.exit_code == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }

    /// Stops a pod. A runtime reports success for a pod that does not exist, because the kubelet repeats its
    /// calls. Here that is an error, for people.
    pub(super) async fn stop(&mut self, pod: String) -> Result<(), CriError> {
        self.status_of(&pod).await?;
        let request = self.request(cri::StopPodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        });
        self.runtime
            .stop_pod_sandbox(request)
            .await
            .map_err(refused("StopPodSandbox"))?;
        self.done("stopped", &pod)
    }

    /// Stops and removes a pod; one that does not exist is an error, as for [`stop`](Self::stop).
    pub(super) async fn remove(&mut self, pod: String) -> Result<(), CriError> {
        self.remove_pod(pod.clone()).await?;
        self.done("removed", &pod)
    }

    async fn remove_pod(&mut self, pod: String) -> Result<(), CriError> {
        // The log directory that `run` created for this pod, if any.
        let logs = self
            .status_of(&pod)
            .await?
            .annotations
            .get(LOG_DIR_ANNOTATION)
            .map(PathBuf::from);
        let logs = logs.filter(|dir| is_own_log_dir(dir));
        // RemovePodSandbox kills the processes; a stop first gives them their grace period.
        let request = self.request(cri::StopPodSandboxRequest {
            pod_sandbox_id: pod.clone(),
        });
        self.runtime
            .stop_pod_sandbox(request)
            .await
            .map_err(refused("StopPodSandbox"))?;
        let request = self.request(cri::RemovePodSandboxRequest {
            pod_sandbox_id: pod,
        });
        self.runtime
            .remove_pod_sandbox(request)
            .await
            .map_err(refused("RemovePodSandbox"))?;
        if let Some(logs) = logs {
            if_present(fs::remove_dir_all(&logs)).map_err(|source| CriError::LogDir {
                doing: "remove",
                path: logs,
                source,
            })?;
        }
        Ok(())
    }

    /// Prints the result for an object.
    pub(super) fn done(&self, what: &str, object: &str) -> Result<(), CriError> {
        match self.output {
            Format::Json => print_json(&json!({ what: object }))?,
            Format::Text => print(format!("{what} {object}\n"))?,
        }
        Ok(())
    }
}

/// Returns whether a path is a directory directly below [`LOG_DIR`]. It is checked because any client can set
/// the annotation.
fn is_own_log_dir(dir: &Path) -> bool {
    dir.parent() == Some(Path::new(LOG_DIR)) && dir.file_name().is_some()
}

fn pod_config(args: &RunArgs) -> Result<cri::PodSandboxConfig, CriError> {
    let uid = SandboxId::random().to_string()[..32].to_owned();
    let mut annotations = BTreeMap::new();
    let logs = match &args.log_dir {
        Some(dir) => std::path::absolute(dir)?,
        None => {
            let dir = PathBuf::from(LOG_DIR)
                .join(format!("default_{}_{uid}", args.name.replace('/', "_")));
            annotations.insert(LOG_DIR_ANNOTATION.into(), dir.display().to_string());
            dir
        }
    };
    fs::create_dir_all(&logs).map_err(|source| CriError::LogDir {
        doing: "make",
        path: logs.clone(),
        source,
    })?;
    Ok(cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata {
            name: args.name.clone(),
            uid,
            namespace: "default".into(),
            attempt: 0,
        }),
        hostname: if args.host_network {
            String::new()
        } else {
            args.name.clone()
        },
        log_directory: logs.display().to_string(),
        annotations,
        linux: Some(cri::LinuxPodSandboxConfig {
            security_context: Some(cri::LinuxSandboxSecurityContext {
                namespace_options: Some(namespaces(args.host_network)),
                ..Default::default()
            }),
            ..Default::default()
        }),
        ..Default::default()
    })
}

/// One process namespace for each container; the network as requested.
fn namespaces(host_network: bool) -> cri::NamespaceOption {
    let network = if host_network {
        cri::NamespaceMode::Node
    } else {
        cri::NamespaceMode::Pod
    };
    cri::NamespaceOption {
        network: network.into(),
        pid: cri::NamespaceMode::Container.into(),
        ipc: cri::NamespaceMode::Pod.into(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_directories_created_by_the_command_are_removed() {
        assert!(is_own_log_dir(Path::new(
            "/var/log/switchyard/default_web_0123"
        )));
        for path in [
            "/var/log/switchyard",
            "/var/log/switchyard/..",
            "/var/log/switchyard/a/b",
            "/etc",
            "x",
            "",
        ] {
            assert!(!is_own_log_dir(Path::new(path)), "{path}");
        }
    }
}
