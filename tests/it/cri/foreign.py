"""A gRPC client on gRPC's C core: reads calls, each a method and a request in hex, and prints what is answered.

    /usr/bin/python3 foreign.py unix:///run/switchyard/cri.sock [AUTHORITY]

It sends the :authority that its library gives a unix socket, or this one, as other versions of the library do.
"""

import sys

import grpc


def as_it_is(message):
    return message


def main(target, authority=None):
    options = [("grpc.default_authority", authority)] if authority else None
    with grpc.insecure_channel(target, options) as channel:
        for line in sys.stdin:
            method, _, request = line.rstrip("\n").partition(" ")
            call = channel.unary_unary(method, request_serializer=as_it_is, response_deserializer=as_it_is)
            try:
                print("OK", call(bytes.fromhex(request), timeout=60).hex(), flush=True)
            except grpc.RpcError as error:
                print(error.code().name, repr(error.details()), flush=True)


main(*sys.argv[1:])
