//! The client of ttrpc against a server that is correct, wrong, slow or unresponsive.

use std::time::Duration;

use proptest::prelude::*;
use switchyard_proto::containerd::task::v2 as task;
use switchyard_proto::ttrpc;
use tokio::time::timeout;

use super::*;

fn pair() -> (Connection, UnixStream) {
    let (near, far) = UnixStream::pair().unwrap();
    (Connection::new(near, "k8s.io"), far)
}

async fn heard(far: &mut UnixStream) -> (u32, Request) {
    let mut head = [0; HEADER_LEN];
    far.read_exact(&mut head).await.unwrap();
    assert_eq!(head[8..], [KIND_REQUEST, 0]);
    let length = u32::from_be_bytes(head[..4].try_into().unwrap());
    let mut message = vec![0; length.try_into().unwrap()];
    far.read_exact(&mut message).await.unwrap();
    (
        u32::from_be_bytes(head[4..8].try_into().unwrap()),
        Request::decode(&*message).unwrap(),
    )
}

/// Sends a request and waits for its response.
async fn ask<T: Message + Default>(
    connection: &mut Connection,
    asked: &impl Message,
) -> Result<T, Fault> {
    let trace = vec![("traceparent", "00-of-a-call".to_owned())];
    connection
        .send_request("some.Service", "Start", asked, trace, None)
        .await?;
    connection.read_response().await
}

async fn say(far: &mut UnixStream, call: u32, response: &Response) {
    let frame = frame(call, KIND_RESPONSE, &response.encode_to_vec()).unwrap();
    // In pieces, as a socket may deliver it.
    for piece in frame.chunks(3) {
        far.write_all(piece).await.unwrap();
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn calls_have_odd_numbers_and_their_metadata_and_get_their_answers() {
    let (mut near, mut far) = pair();
    for number in [1, 3, 5] {
        let asked = task::StartRequest {
            id: "a".to_owned(),
            exec_id: "b".to_owned(),
        };
        let call = ask::<task::StartResponse>(&mut near, &asked);
        let serve = async {
            let (call, request) = heard(&mut far).await;
            assert_eq!(
                (call, &*request.service, &*request.method),
                (number, "some.Service", "Start")
            );
            assert_eq!(
                task::StartRequest::decode(&*request.payload).unwrap(),
                asked
            );
            let metadata = request
                .metadata
                .into_iter()
                .map(|KeyValue { key, value }| (key, value));
            let namespace = ("containerd-namespace-ttrpc".to_owned(), "k8s.io".to_owned());
            let trace = ("traceparent".to_owned(), "00-of-a-call".to_owned());
            assert_eq!(metadata.collect::<Vec<_>>(), [namespace, trace]);
            let payload = task::StartResponse { pid: number + 70 }.encode_to_vec();
            say(
                &mut far,
                call,
                &Response {
                    status: None,
                    payload,
                },
            )
            .await;
        };
        let (answer, ()) = tokio::join!(call, serve);
        assert_eq!(answer.unwrap().pid, number + 70);
    }
}

#[tokio::test]
async fn a_refusal_has_its_code_and_its_text() {
    let (mut near, mut far) = pair();
    near.send_request(
        "some.Service",
        "Delete",
        &task::DeleteRequest::default(),
        Vec::new(),
        None,
    )
    .await
    .unwrap();
    let (call, _) = heard(&mut far).await;
    let status = ttrpc::Status {
        code: 5,
        message: "not there".to_owned(),
    };
    say(
        &mut far,
        call,
        &Response {
            status: Some(status),
            payload: Vec::new(),
        },
    )
    .await;
    let Err(Fault::Refused(status)) = near.read_response::<task::DeleteResponse>().await else {
        panic!("it is refused")
    };
    assert_eq!(
        (status.code(), status.message()),
        (Code::NotFound, "not there")
    );
}

#[tokio::test]
async fn what_is_no_answer_is_the_end_of_a_connection() {
    let ok = Response::default().encode_to_vec();
    let huge = [
        &(5_u32 << 20).to_be_bytes()[..],
        &1_u32.to_be_bytes(),
        &[KIND_RESPONSE, 0],
    ]
    .concat();
    let frames = [
        frame(3, KIND_RESPONSE, &ok).unwrap(),
        frame(1, KIND_REQUEST, &ok).unwrap(),
        frame(1, KIND_RESPONSE, &[0xff]).unwrap(),
        huge,
        b"half".to_vec(),
    ];
    for bytes in frames {
        let (mut near, mut far) = pair();
        near.send_request(
            "some.Service",
            "Wait",
            &task::WaitRequest::default(),
            Vec::new(),
            None,
        )
        .await
        .unwrap();
        heard(&mut far).await;
        far.write_all(&bytes).await.unwrap();
        drop(far);
        let answer = near.read_response::<task::WaitResponse>().await;
        assert!(
            matches!(answer, Err(Fault::Lost(_))),
            "{bytes:?}: {answer:?}"
        );
    }
}

#[tokio::test(start_paused = true)]
async fn an_answer_that_somebody_stopped_waiting_for_is_still_taken() {
    let (mut near, mut far) = pair();
    near.send_request(
        "some.Service",
        "Wait",
        &task::WaitRequest::default(),
        Vec::new(),
        None,
    )
    .await
    .unwrap();
    let (call, _) = heard(&mut far).await;
    let payload = task::WaitResponse {
        exit_status: 7,
        exited_at: None,
    }
    .encode_to_vec();
    let frame = frame(
        call,
        KIND_RESPONSE,
        &Response {
            status: None,
            payload,
        }
        .encode_to_vec(),
    )
    .unwrap();
    let (first, second) = frame.split_at(HEADER_LEN + 1);
    let silence = Duration::from_secs(3600);
    assert!(
        timeout(silence, near.read_response::<task::WaitResponse>())
            .await
            .is_err()
    );
    far.write_all(first).await.unwrap();
    assert!(
        timeout(silence, near.read_response::<task::WaitResponse>())
            .await
            .is_err()
    );
    far.write_all(second).await.unwrap();
    let answer = timeout(silence, near.read_response::<task::WaitResponse>()).await;
    assert_eq!(answer.unwrap().unwrap().exit_status, 7);
}

#[tokio::test]
async fn one_that_never_stops_talking_costs_no_more_than_the_largest_answer() {
    let length = u32::try_from(MAX_MESSAGE).unwrap();
    for length in [length, length + 1, u32::MAX] {
        let (mut near, mut far) = pair();
        near.send_request(
            "some.Service",
            "Wait",
            &task::WaitRequest::default(),
            Vec::new(),
            None,
        )
        .await
        .unwrap();
        heard(&mut far).await;
        let talk = async move {
            let head = [
                &length.to_be_bytes()[..],
                &1_u32.to_be_bytes(),
                &[KIND_RESPONSE, 0],
            ]
            .concat();
            far.write_all(&head).await?;
            // Until the client closes the connection.
            while far.write_all(&[0xff; 1 << 16]).await.is_ok() {}
            Ok::<_, io::Error>(())
        };
        let talk = tokio::spawn(talk);
        let answer = near.read_response::<task::WaitResponse>().await;
        assert!(matches!(answer, Err(Fault::Lost(_))), "{answer:?}");
        assert!(
            near.received.capacity() <= 2 * MAX_MESSAGE + (1 << 16),
            "{}",
            near.received.capacity()
        );
        drop(near);
        talk.await.unwrap().unwrap();
    }
}

/// The responses that are taken from these bytes, received in pieces of `cut` bytes, and how many bytes
/// remain.
fn taken(bytes: &[u8], cut: usize, latest: u32) -> (Result<Vec<Response>, String>, usize) {
    let mut received = Vec::new();
    let mut responses = Vec::new();
    for piece in bytes.chunks(cut) {
        received.extend_from_slice(piece);
        loop {
            match take_response(&mut received, latest) {
                Ok(Some(response)) => responses.push(response),
                Ok(None) => break,
                Err(fault) => return (Err(fault.to_string()), received.len()),
            }
        }
    }
    (Ok(responses), received.len())
}

fn any_response() -> impl Strategy<Value = Response> {
    let status = proptest::option::of((any::<i32>(), ".{0,40}"));
    (status, proptest::collection::vec(any::<u8>(), 0..300)).prop_map(|(status, payload)| {
        let status = status.map(|(code, message)| ttrpc::Status { code, message });
        Response { status, payload }
    })
}

proptest! {
    #[test]
    fn any_answer_is_taken_whole_however_it_is_cut(
        responses in proptest::collection::vec(any_response(), 1..4),
        latest in any::<u32>(),
        cut in 1_usize..400,
        half in 0..HEADER_LEN,
    ) {
        let mut bytes = Vec::new();
        for response in &responses {
            bytes.extend(frame(latest, KIND_RESPONSE, &response.encode_to_vec()).unwrap());
        }
        // The next frame has just begun.
        let next = frame(latest, KIND_RESPONSE, &[]).unwrap();
        bytes.extend_from_slice(&next[..half]);
        prop_assert_eq!(taken(&bytes, cut, latest), (Ok(responses), half));
    }

    #[test]
    fn any_bytes_are_an_answer_or_the_end(
        bytes in proptest::collection::vec(any::<u8>(), 0..600),
        cut in 1_usize..600,
        latest in any::<u32>(),
    ) {
        let (result, left) = taken(&bytes, cut, latest);
        prop_assert!(left <= bytes.len());
        // A header that is wrong is refused without waiting for the message.
        let is_foreign = bytes.len() >= HEADER_LEN && (bytes[8] != KIND_RESPONSE || bytes[4..8] != latest.to_be_bytes());
        prop_assert!(!is_foreign || result.is_err(), "{:?}", result);
    }

    #[test]
    fn an_answer_with_a_wrong_byte_is_never_taken_for_another_call(
        response in any_response(),
        latest in any::<u32>(),
        place in any::<prop::sample::Index>(),
        flip in 1_u8..,
    ) {
        let mut bytes = frame(latest, KIND_RESPONSE, &response.encode_to_vec()).unwrap();
        let place = place.index(bytes.len());
        bytes[place] ^= flip;
        let (result, _) = taken(&bytes, usize::MAX, latest);
        // The stream id and the type are at 4 to 8.
        prop_assert!(!(4..=8).contains(&place) || result.is_err(), "{:?}", result);
    }
}
