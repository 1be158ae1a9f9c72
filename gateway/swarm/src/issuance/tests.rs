//! Tests of how answers to a certificate request are interpreted.

use switchyard_proto::docker::swarmkit::v1 as swarm;
use switchyard_proto::docker::swarmkit::v1::issuance_status::State;

use super::{Verdict, verdict};

fn answer(state: State, csr: &str, certificate: &str) -> swarm::NodeCertificateStatusResponse {
    swarm::NodeCertificateStatusResponse {
        status: Some(swarm::IssuanceStatus {
            state: state.into(),
            err: "because".to_owned(),
        }),
        certificate: Some(swarm::Certificate {
            csr: csr.into(),
            certificate: certificate.into(),
            ..Default::default()
        }),
    }
}

#[test]
fn certificate_of_this_request_is_issued_also_if_it_is_to_be_renewed() {
    for state in [State::Issued, State::Rotate] {
        let expected = Verdict::Issued(b"chain".to_vec());
        assert_eq!(
            verdict(answer(state, "request", "chain"), "request"),
            expected
        );
        assert_eq!(
            verdict(answer(state, "request", ""), "request"),
            Verdict::Wait
        );
    }
}

#[test]
fn answer_about_an_earlier_request_is_none() {
    for state in [State::Issued, State::Failed, State::Rotate] {
        assert_eq!(
            verdict(answer(state, "earlier", "chain"), "request"),
            Verdict::Wait
        );
    }
}

#[test]
fn failure_of_this_request_is_final_and_has_a_short_reason() {
    let expected = Verdict::Refused("because".to_owned());
    assert_eq!(
        verdict(answer(State::Failed, "request", ""), "request"),
        expected
    );
    let mut long = answer(State::Failed, "request", "");
    long.status = Some(swarm::IssuanceStatus {
        state: State::Failed.into(),
        err: "x".repeat(1 << 20),
    });
    let Verdict::Refused(reason) = verdict(long, "request") else {
        panic!("it has failed")
    };
    assert_eq!(reason.len(), 500);
}

#[test]
fn anything_else_is_waited_for() {
    for state in [State::Unknown, State::Renew, State::Pending] {
        assert_eq!(
            verdict(answer(state, "request", "chain"), "request"),
            Verdict::Wait
        );
    }
    let mut strange = answer(State::Issued, "request", "chain");
    strange.status = Some(swarm::IssuanceStatus {
        state: 99,
        err: String::new(),
    });
    assert_eq!(verdict(strange, "request"), Verdict::Wait);
    assert_eq!(
        verdict(swarm::NodeCertificateStatusResponse::default(), "request"),
        Verdict::Wait
    );
}
