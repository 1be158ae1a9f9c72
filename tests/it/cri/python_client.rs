//! A client on gRPC's C core (Python's grpcio, C++, Ruby, PHP, C#). Version 1.51 names every server on a unix
//! socket "localhost"; 1.85 sends the path of the socket, percent-encoded. grpc-java and old grpc-go send a
//! path as well. It is no host name.

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use prost::Message;
use switchyard_proto::cri::v1 as cri;
use switchyard_tests::node::TestNode;
use switchyard_tests::prereq::require_file;

/// Debian's: another one on `PATH` does not see Debian's modules.
const PYTHON: &str = "/usr/bin/python3";
/// Path of the client library in Debian's package.
const GRPCIO: &str = "/usr/lib/python3/dist-packages/grpc/__init__.py";
/// The service that an old kubelet's clients call, by the same socket.
const V1ALPHA2: &str = "/runtime.v1alpha2.RuntimeService";
/// The current service.
pub(crate) const RUNTIME: &str = "/runtime.v1.RuntimeService";

/// A Python process with one channel.
pub(crate) struct PythonClient {
    process: Child,
    calls: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl PythonClient {
    /// With the `:authority` that the library sends by itself, or this one.
    pub(crate) fn start(socket: &Path, authority: Option<&str>) -> Self {
        require_file(Path::new(GRPCIO), "python3-grpcio");
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("it/cri/foreign.py");
        let mut command = Command::new(PYTHON);
        command
            .arg(script)
            .arg(format!("unix://{}", socket.display()))
            .args(authority)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().expect("python starts");
        let calls = process.stdin.take().expect("it is piped");
        let answers = BufReader::new(process.stdout.take().expect("it is piped"));
        Self {
            process,
            calls,
            answers,
        }
    }

    /// One call, and what it is answered; the name of the code and its text if it is refused.
    pub(crate) fn call<T: Message + Default>(
        &mut self,
        service: &str,
        method: &str,
        request: &impl Message,
    ) -> Result<T, String> {
        let request = hex::encode(request.encode_to_vec());
        writeln!(self.calls, "{service}/{method} {request}").expect("it reads calls");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("it prints text");
        let answer = answer.trim_end();
        match answer.split_once(' ') {
            Some(("OK", bytes)) => Ok(decode(bytes)),
            None if answer == "OK" => Ok(decode("")),
            Some(_) | None => Err(answer.to_owned()),
        }
    }
}

impl Drop for PythonClient {
    fn drop(&mut self) {
        // It ends by itself with the end of its calls, unless a call hangs.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn decode<T: Message + Default>(hexadecimal: &str) -> T {
    let bytes = hex::decode(hexadecimal).expect("it prints hex");
    T::decode(bytes.as_slice()).expect("an answer is of its method's type")
}

#[test]
fn default_python_client_runs_a_pod() {
    run_a_pod("foreign-plain", |_| None);
}

#[test]
fn client_with_percent_encoded_socket_path_authority_runs_a_pod() {
    run_a_pod("foreign-encoded", |path| {
        Some(path.trim_start_matches('/').replace('/', "%2F"))
    });
}

#[test]
fn client_with_raw_socket_path_authority_runs_a_pod() {
    run_a_pod("foreign-bare", |path| Some(path.to_owned()));
}

fn run_a_pod(name: &str, authority: impl FnOnce(&str) -> Option<String>) {
    let node = TestNode::shared();
    let socket = node.root().cri_socket();
    let authority = authority(socket.to_str().expect("the path is ASCII"));
    let mut client = PythonClient::start(&socket, authority.as_deref());
    let version: cri::VersionResponse = client
        .call(RUNTIME, "Version", &cri::VersionRequest::default())
        .expect("it is let in");
    assert_eq!(version.runtime_name, "switchyard");
    let old: cri::VersionResponse = client
        .call(V1ALPHA2, "Version", &cri::VersionRequest::default())
        .expect("it is let in");
    assert_eq!(old.runtime_api_version, "v1alpha2");

    let config = node.pod_config(name);
    let request = cri::RunPodSandboxRequest {
        config: Some(config.clone()),
        ..Default::default()
    };
    let run: cri::RunPodSandboxResponse = client
        .call(RUNTIME, "RunPodSandbox", &request)
        .expect("it runs");
    let pod = run.pod_sandbox_id;
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: pod.clone(),
        config: Some(node.container("main", &["sleep", "1000"])),
        sandbox_config: Some(config),
    };
    let created: cri::CreateContainerResponse = client
        .call(RUNTIME, "CreateContainer", &request)
        .expect("it can be made");
    let container_id = created.container_id;
    let request = cri::StartContainerRequest {
        container_id: container_id.clone(),
    };
    let _: cri::StartContainerResponse = client
        .call(RUNTIME, "StartContainer", &request)
        .expect("it starts");
    assert_eq!(
        node.cri()
            .status(&container_id)
            .expect("it is there")
            .state(),
        cri::ContainerState::ContainerRunning
    );

    let refused = client.call::<cri::ContainerStatusResponse>(
        RUNTIME,
        "ContainerStatus",
        &cri::ContainerStatusRequest {
            container_id: "0123".into(),
            verbose: false,
        },
    );
    assert!(
        refused
            .expect_err("there is none")
            .starts_with("NOT_FOUND "),
        "errors come as they are"
    );

    let request = cri::RemoveContainerRequest {
        container_id: container_id.clone(),
    };
    let _: cri::RemoveContainerResponse = client
        .call(RUNTIME, "RemoveContainer", &request)
        .expect("it can be removed");
    let request = cri::StopPodSandboxRequest {
        pod_sandbox_id: pod.clone(),
    };
    let _: cri::StopPodSandboxResponse = client
        .call(RUNTIME, "StopPodSandbox", &request)
        .expect("it stops");
    let request = cri::RemovePodSandboxRequest {
        pod_sandbox_id: pod.clone(),
    };
    let _: cri::RemovePodSandboxResponse = client
        .call(RUNTIME, "RemovePodSandbox", &request)
        .expect("it can be removed");
    node.assert_gone(&[&pod, &container_id]);
}
