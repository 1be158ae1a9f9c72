//! `switchyard cri`: a small CRI client for inspection and tests. It works with every runtime that serves
//! `runtime.v1`.

use std::io;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use switchyard_linux::services::status_command;
use switchyard_proto::cri::v1 as cri;
use switchyard_proto::cri::v1::image_service_client::ImageServiceClient;
use switchyard_proto::cri::v1::runtime_service_client::RuntimeServiceClient;
use switchyard_socket::channel;
use tonic::transport::Channel;

use super::log_output::PrintError;
use super::progress::waiting;
use crate::daemon::AWAY_LIMIT;
use crate::output::Format;

mod logs;
mod pod;
mod show;

/// The largest response that is accepted, in bytes; other CRI clients have the same limit.
const MAX_ANSWER: usize = 16 << 20;

/// The runtime, and the command.
#[derive(Debug, Args)]
pub(super) struct CriArgs {
    /// The runtime's CRI socket.
    #[arg(
        long,
        global = true,
        value_name = "PATH",
        env = "SWITCHYARD_CRI_SOCKET",
        default_value = "/run/switchyard/cri.sock"
    )]
    socket: PathBuf,
    /// Text or JSON.
    #[arg(long, short, global = true, value_enum, default_value_t)]
    output: Format,
    /// Time limit of one call, in seconds.
    #[arg(long, global = true, value_name = "SECONDS", default_value_t = 300)]
    timeout: u64,
    #[command(subcommand)]
    command: CriCommand,
}

#[derive(Debug, Subcommand)]
enum CriCommand {
    /// Show the runtime's name and version.
    Version,
    /// Show the runtime's conditions; exit status 1 if it is not ready.
    Status,
    /// Pull an image.
    Pull {
        /// The image's reference.
        image: String,
    },
    /// List images.
    Images,
    /// Remove an image.
    Rmi {
        /// The image's reference or id.
        image: String,
    },
    /// Pull an image if it is absent, and run it as the only container of a new pod.
    Run(pod::RunArgs),
    /// List pods.
    Pods,
    /// List containers.
    Ps,
    /// Print a container's log so far.
    Logs {
        /// The container's id, or its beginning.
        container: String,
    },
    /// Run a command in a container; exit status 1 if the command's is not 0.
    Exec {
        /// The container's id, or its beginning.
        container: String,
        /// The command and its arguments.
        #[arg(last = true, required = true)]
        command: Vec<String>,
    },
    /// Stop a pod and its containers.
    Stop {
        /// The pod's id, or its beginning.
        pod: String,
    },
    /// Remove a pod and its containers, stopping them first.
    Rm {
        /// The pod's id, or its beginning.
        pod: String,
    },
}

/// Reason why a call failed.
#[derive(Debug, thiserror::Error)]
pub(super) enum CriError {
    #[error("cannot connect to {}: is the runtime running, and are you root?", socket.display())]
    Connect {
        socket: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
    #[error(
        "no runtime runs that listens on {}, and none has started within {AWAY_LIMIT:?}: see '{status}'",
        _0.display(),
        status = status_command("switchyard")
    )]
    Away(PathBuf),
    #[error("{call}: {} ({:?})", status.message(), status.code())]
    Refused {
        call: &'static str,
        status: Box<tonic::Status>,
    },
    #[error(
        "{call}: the runtime ended before it had answered ({}): run the command again; 'switchyard cri pods' and \
         'switchyard cri ps' show what is done", status.message()
    )]
    Ended {
        call: &'static str,
        status: Box<tonic::Status>,
    },
    #[error("{call} was answered without {what}")]
    Incomplete {
        call: &'static str,
        what: &'static str,
    },
    #[error("container {0} has no log: it was created without a log path")]
    NoLog(String),
    #[error(transparent)]
    Log(#[from] PrintError),
    #[error("cannot {doing} the log directory {}", path.display())]
    LogDir {
        doing: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("cannot write the output")]
    Output(#[from] io::Error),
}

/// A connected runtime.
struct Client {
    runtime: RuntimeServiceClient<Channel>,
    images: ImageServiceClient<Channel>,
    output: Format,
    timeout: Duration,
}

/// Runs a command.
pub(super) async fn run(args: CriArgs) -> Result<ExitCode, CriError> {
    let CriArgs {
        socket,
        output,
        timeout,
        command,
    } = args;
    if !channel::wait_attended(&socket, AWAY_LIMIT).await {
        return Err(CriError::Away(socket));
    }
    let channel = channel::grpc(&socket)
        .await
        .map_err(|source| CriError::Connect {
            socket: socket.clone(),
            source,
        })?;
    let mut client = Client {
        runtime: RuntimeServiceClient::new(channel.clone()).max_decoding_message_size(MAX_ANSWER),
        images: ImageServiceClient::new(channel).max_decoding_message_size(MAX_ANSWER),
        output,
        timeout: Duration::from_secs(timeout),
    };
    match command {
        CriCommand::Version => client.version().await?,
        CriCommand::Status => return client.status().await,
        CriCommand::Pull { image } => client.pull_and_show(&image).await?,
        CriCommand::Images => client.list_images().await?,
        CriCommand::Rmi { image } => client.remove_image(image).await?,
        CriCommand::Run(args) => client.run(args).await?,
        CriCommand::Pods => client.list_pods().await?,
        CriCommand::Ps => client.list_containers().await?,
        CriCommand::Logs { container } => return client.logs(container).await,
        CriCommand::Exec { container, command } => return client.exec(container, command).await,
        CriCommand::Stop { pod } => client.stop(pod).await?,
        CriCommand::Rm { pod } => client.remove(pod).await?,
    }
    Ok(ExitCode::SUCCESS)
}

/// Names the call in its error.
fn refused(call: &'static str) -> impl FnOnce(tonic::Status) -> CriError {
    move |status| {
        let is_cut_off = channel::is_cut_off(&status);
        let status = Box::new(status);
        if is_cut_off {
            CriError::Ended { call, status }
        } else {
            CriError::Refused { call, status }
        }
    }
}

impl Client {
    /// A request with the deadline from the command line.
    fn request<T>(&self, message: T) -> tonic::Request<T> {
        let mut request = tonic::Request::new(message);
        request.set_timeout(self.timeout);
        request
    }

    /// Pulls an image; returns its reference by digest.
    async fn pull(&mut self, image: &str) -> Result<String, CriError> {
        let request = self.request(cri::PullImageRequest {
            image: Some(image_spec(image)),
            ..Default::default()
        });
        let what = format!("{image} is pulled");
        let pulled = waiting(&what, None, self.images.pull_image(request)).await;
        let pulled = pulled.map_err(refused("PullImage"))?;
        Ok(pulled.into_inner().image_ref)
    }

    /// The image, if the runtime has it.
    async fn find_image(&mut self, image: &str) -> Result<Option<cri::Image>, CriError> {
        let request = self.request(cri::ImageStatusRequest {
            image: Some(image_spec(image)),
            verbose: false,
        });
        let found = self
            .images
            .image_status(request)
            .await
            .map_err(refused("ImageStatus"))?;
        Ok(found.into_inner().image)
    }
}

fn image_spec(image: &str) -> cri::ImageSpec {
    cri::ImageSpec {
        image: image.to_owned(),
        user_specified_image: image.to_owned(),
        ..cri::ImageSpec::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn end_of_the_runtime_during_a_call_is_named_with_what_to_do() {
        let broken = io::Error::from(io::ErrorKind::BrokenPipe);
        let error = refused("RunPodSandbox")(tonic::Status::from_error(Box::new(broken)));
        let text = error.to_string();
        assert!(
            text.starts_with("RunPodSandbox: the runtime ended before it had answered")
                && text.contains("run the command again"),
            "{text}"
        );
        let error = refused("RunPodSandbox")(tonic::Status::unavailable("still recovering"));
        assert_eq!(
            error.to_string(),
            "RunPodSandbox: still recovering (Unavailable)"
        );
    }
}
