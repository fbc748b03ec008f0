"""A name server that answers every question with 127.0.0.1, or none at all if it is `silent`."""

import socket
import sys

ANSWERS, ADDRESS = b"\x81\x80\0\1\0\1\0\0\0\0", b"\xc0\x0c\0\1\0\1\0\0\0\0\0\4\x7f\0\0\1"

if __name__ == "__main__":
    inbox = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    inbox.bind((sys.argv[1], 53))
    while True:
        question, sender = inbox.recvfrom(512)
        if len(sys.argv) == 2:
            inbox.sendto(question[:2] + ANSWERS + question[12:] + ADDRESS, sender)
