//! A shim that answers wrongly: a proxy between the daemon and the real shim does not answer, sends nonsense,
//! closes the connection within an answer, answers another call or never ends an answer.

use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use switchyard_proto::cri::v1::ExecSyncResponse;
use switchyard_tests::host::{eventually, random_name};
use switchyard_tests::node::TestNode;
use tonic::Code;

use super::{LIMIT, assert_no_leaks_since, refused, shim};

/// A short shim timeout, so that a test need not wait for the default.
const CONF: &str = "[containerd]\nshim_timeout_seconds = 1\n";
/// Time for a command that gives up on a shim, with a margin for a slow machine.
const SOON: Duration = Duration::from_secs(20);
/// The header of each message: its length, the id of the call, type and flags.
const HEAD: usize = 10;

/// A wrong answer of the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BadAnswer {
    /// It does not answer.
    Silence,
    /// It sends bytes that are no ttrpc message.
    Garbage,
    /// It sends half of the answer and closes the connection.
    Truncated,
    /// It answers with the id of another call.
    WrongCall,
    /// It sends a message that never ends.
    Endless,
}

/// The call that gets the wrong answer, and whether it is forwarded to the real shim before.
#[derive(Debug, Clone, Copy)]
struct PlannedAnswer {
    method: &'static str,
    answer: BadAnswer,
    forwarded: bool,
}

#[derive(Debug)]
struct ShimProxy {
    socket: PathBuf,
    plan: Arc<Mutex<Option<PlannedAnswer>>>,
    /// The number of calls that were answered so.
    answered: Arc<AtomicUsize>,
}

impl ShimProxy {
    /// Listens in place of a container's shim, for clients that look up the address from now on.
    fn in_front_of(node: &TestNode, container: &str) -> Self {
        let dir = fs::read_link(format!("/proc/{}/cwd", shim(node, container)))
            .expect("a shim works somewhere");
        let bundle = dir
            .parent()
            .expect("bundles are side by side")
            .join(container);
        let socket = PathBuf::from(format!("/run/{}.sock", random_name()));
        let file = ["bootstrap.json", "address"]
            .map(|name| bundle.join(name))
            .into_iter()
            .find(|file| file.exists());
        let file = file.expect("containerd writes the address of a shim down");
        let text = fs::read_to_string(&file).expect("it was just there");
        let real = text
            .split("unix://")
            .nth(1)
            .expect("it is a unix socket")
            .trim_end();
        let real = real
            .split('"')
            .next()
            .expect("the first part is always there")
            .to_owned();
        fs::write(
            &file,
            text.replace(&real, socket.to_str().expect("it is ASCII")),
        )
        .expect("root may write");
        let listener = UnixListener::bind(&socket).expect("the name is free");
        let plan = Arc::<Mutex<Option<PlannedAnswer>>>::default();
        let played = Arc::<AtomicUsize>::default();
        let all = (Arc::clone(&plan), Arc::clone(&played));
        std::thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let real = real.clone();
                let (plan, played) = all.clone();
                // The thread ends with its connection.
                std::thread::spawn(move || serve(client, Path::new(&real), &plan, &played));
            }
        });
        Self {
            socket,
            plan,
            answered: played,
        }
    }

    fn plan(&self, plan: Option<PlannedAnswer>) {
        *self.plan.lock() = plan;
    }
}

impl Drop for ShimProxy {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.socket);
    }
}

/// Forwards calls, one at a time, until the one that is to be answered differently.
fn serve(
    mut client: UnixStream,
    real: &Path,
    plan: &Mutex<Option<PlannedAnswer>>,
    played: &AtomicUsize,
) -> io::Result<()> {
    let mut real = UnixStream::connect(real)?;
    loop {
        let request = frame(&mut client)?;
        let planned = plan
            .lock()
            .filter(|plan| method(&request) == plan.method.as_bytes());
        let mut answer = [&[0; 4], &request[4..8], &[2, 0]].concat();
        if planned.is_none_or(|plan| plan.forwarded) {
            real.write_all(&request)?;
            answer = frame(&mut real)?;
        }
        let Some(PlannedAnswer { answer: act, .. }) = planned else {
            client.write_all(&answer)?;
            continue;
        };
        played.fetch_add(1, Ordering::Relaxed);
        match act {
            BadAnswer::Silence => {}
            BadAnswer::Garbage => client.write_all(&[0xa5; 100])?,
            BadAnswer::Truncated => return client.write_all(&answer[..answer.len() / 2]),
            BadAnswer::WrongCall => {
                answer[7] ^= 2;
                client.write_all(&answer)?;
            }
            BadAnswer::Endless => {
                client.write_all(&[&[0, 0x40, 0, 0], &request[4..8], &[2, 0]].concat())?;
                loop {
                    client.write_all(&[0xff; 4096])?;
                }
            }
        }
        // Until the client closes the connection.
        return client.read(&mut [0]).map(drop);
    }
}

fn frame(stream: &mut UnixStream) -> io::Result<Vec<u8>> {
    let mut frame = vec![0; HEAD];
    stream.read_exact(&mut frame)?;
    let length = u32::from_be_bytes(frame[..4].try_into().expect("these are four"));
    let length = usize::try_from(length).expect("it is that large at least");
    frame.resize(HEAD + length, 0);
    stream.read_exact(&mut frame[HEAD..])?;
    Ok(frame)
}

/// The method of a request: its second field. The first two fields are texts of less than 128 bytes.
fn method(request: &[u8]) -> &[u8] {
    let service = usize::from(request[HEAD + 1]);
    let second = &request[HEAD + 2 + service..];
    assert_eq!(
        (request[HEAD], second[0]),
        (0x0a, 0x12),
        "the request begins in another way"
    );
    &second[2..2 + usize::from(second[1])]
}

impl PlannedAnswer {
    /// The code that the client gets if not the command's own result: the daemon asks containerd for facts
    /// that the shim does not answer here.
    const fn expected_code(self) -> Option<Code> {
        match (self.method.as_bytes(), self.answer) {
            (b"Exec" | b"Start", BadAnswer::Silence) => Some(Code::Unavailable),
            (b"Wait", BadAnswer::Silence) => Some(Code::DeadlineExceeded),
            // A shim is never asked twice to start a process: it would not survive that if the first start
            // has failed.
            (
                b"Start",
                BadAnswer::Garbage
                | BadAnswer::Truncated
                | BadAnswer::WrongCall
                | BadAnswer::Endless,
            ) if !self.forwarded => Some(Code::Unavailable),
            (
                _,
                BadAnswer::Silence
                | BadAnswer::Garbage
                | BadAnswer::Truncated
                | BadAnswer::WrongCall
                | BadAnswer::Endless,
            ) => None,
        }
    }
}

#[test]
fn wrong_shim_answer_fails_at_most_one_exec_and_leaves_nothing_behind() {
    let node = TestNode::start_with(CONF, |_| {});
    let pod = node.pod("answers");
    // The two containers share a bundle directory and a shim; commands in the second go directly to the shim.
    let main = pod.start_shell("main", "exec sleep 1000");
    let other = pod.start_shell("other", "exec sleep 1000");
    let stand_in = ShimProxy::in_front_of(&node, &main);
    let before = node.leak_scan();
    let cri = node.cri().with_timeout(SOON);
    let run = |timeout| {
        cri.exec(
            &main,
            &["sh", "-c", "echo ran >> /dev/shm/ran; echo said"],
            timeout,
        )
    };
    let printed = |answer: &ExecSyncResponse| answer.stdout == b"said\n" && answer.exit_code == 0;
    assert!(printed(
        &run(10).expect("the stand-in passes on what is asked")
    ));
    for method in ["Exec", "Start", "Wait", "Delete"] {
        for act in [
            BadAnswer::Silence,
            BadAnswer::Garbage,
            BadAnswer::Truncated,
            BadAnswer::WrongCall,
            BadAnswer::Endless,
        ] {
            for done in [false, true] {
                let plan = PlannedAnswer {
                    method,
                    answer: act,
                    forwarded: done,
                };
                let _ = node.cri().sh(&other, "rm /dev/shm/ran");
                let played = stand_in.answered.load(Ordering::Relaxed);
                stand_in.plan(Some(plan));
                // The command itself may run longer than the shim timeout.
                let answer = run(if method == "Wait" { 1 } else { 10 });
                assert!(
                    eventually(LIMIT, || stand_in.answered.load(Ordering::Relaxed) > played),
                    "{plan:?} was not played"
                );
                stand_in.plan(None);
                match plan.expected_code() {
                    Some(code) => drop(refused(&format!("{plan:?}"), answer, &[code])),
                    None => assert!(
                        printed(&answer.unwrap_or_else(|status| panic!("{plan:?}: {status}"))),
                        "{plan:?}"
                    ),
                }
                let ran = node
                    .cri()
                    .sh(&other, "touch /dev/shm/ran; wc -l < /dev/shm/ran");
                assert!(
                    ran == "1" || plan.expected_code().is_some() && ran == "0",
                    "{plan:?}: it ran {ran} times"
                );
            }
        }
    }
    assert!(printed(
        &run(10).expect("the shim answers as it should again")
    ));
    assert_no_leaks_since(&node, &before);
}
