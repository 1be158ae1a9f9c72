//! Fuzz targets: properties that hold for any bytes that the kernel, or who pretends to be the kernel, may send. Called only by fuzzers and
//! tests.

use crate::netlink::Request;
use crate::netlink::address::HeldAddress;
use crate::netlink::decode::{attributes, messages};
use crate::netlink::exchange::Exchange;
use crate::netlink::link::Link;
use crate::netlink::neighbour::Neighbour;
use crate::netlink::route::Route;

/// Reads bytes as a datagram of rtnetlink: messages and attributes lie within it, and what is read of them is within its bounds.
///
/// # Panics
/// If that does not hold.
pub fn rtnetlink(data: &[u8]) {
    let requests: Vec<_> = (0..3)
        .map(|index| Request::new(18, 0, &[0; 16], format!("do {index}")).acknowledged())
        .collect();
    let mut exchange = Exchange::new(&requests, 1);
    let is_whole = exchange.take(data).is_ok();
    let bytes: usize = messages(data)
        .flatten()
        .map(|message| message.body.len())
        .sum();
    assert!(bytes <= data.len());
    if let Ok(answers) = exchange.finish() {
        let kept: usize = answers
            .iter()
            .flatten()
            .map(|message| message.body.len())
            .sum();
        assert!(kept <= bytes);
        assert!(answers.len() == requests.len());
    }
    assert!(is_whole || !data.is_empty());
    for message in messages(data).flatten() {
        check_body(message.body);
    }
    check_body(data);
}

fn check_body(body: &[u8]) {
    let values: usize = attributes(body).map(|(_, value)| value.len() + 4).sum();
    assert!(values <= body.len());
    if let Some(link) = Link::read(body) {
        assert!(!link.name.is_empty() && link.master != Some(0));
    }
    if let Some(route) = Route::read(body) {
        let network = route.to.network();
        assert!(network == network.network() && network.length() == route.to.length());
    }
    if let Some(HeldAddress { address, .. }) = HeldAddress::read(body) {
        let bits = if address.prefix.address().is_ipv4() {
            32
        } else {
            128
        };
        assert!(address.prefix.length() <= bits);
    }
    if let Some(neighbour) = Neighbour::read(body) {
        assert!(neighbour.mac.bytes()[0] & 1 == 0);
    }
}
