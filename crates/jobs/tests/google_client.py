"""Google's own client creates, lists, gets, patches and cancels jobs of the service whose address and token are given."""
import json
import sys
import time

import google.oauth2.credentials
from googleapiclient import discovery, errors

address, token = sys.argv[1:3]
ml = discovery.build(
    "ml", "v1", static_discovery=True, cache_discovery=False,
    credentials=google.oauth2.credentials.Credentials(token),
    client_options={"api_endpoint": address},
)
jobs = ml.projects().jobs()
parent = "projects/demo"


def status(call):
    try:
        call.execute()
    except errors.HttpError as error:
        body = json.loads(error.content)["error"]
        assert body["code"] == error.resp.status, body
        return error.resp.status, body["status"], body["message"]
    raise AssertionError("the call did not fail")


def wait(name, *states):
    until = time.monotonic() + 60
    while time.monotonic() < until:
        job = jobs.get(name=f"{parent}/jobs/{name}").execute()
        if job["state"] in states:
            return job
        assert "endTime" not in job, job
        time.sleep(0.02)
    raise AssertionError(f"{name} is not {states}")


# A job as the API's documentation has it.
training = {
    "scaleTier": "CUSTOM", "masterType": "n1-standard-4", "workerType": "n1-standard-4", "workerCount": "1",
    "region": "europe-west2", "args": ["sh", "-c", "exec sleep 1000"],
}
made = jobs.create(parent=parent, body={"jobId": "first", "trainingInput": training, "labels": {"team": "vision"}}).execute()
assert made["state"] in ("QUEUED", "PREPARING", "RUNNING"), made
assert made["trainingInput"] == training and made["createTime"].endswith("Z")

assert status(jobs.create(parent=parent, body={"jobId": "first", "trainingInput": training}))[:2] == (409, "ALREADY_EXISTS")
assert status(jobs.create(parent=parent, body={"jobId": "a/b", "trainingInput": training}))[:2] == (400, "INVALID_ARGUMENT")
code, reason, message = status(jobs.create(parent=parent, body={"jobId": "bad", "trainingInput": {"scaleTier": "CUSTOM", "workerCount": "2", "wokerType": "x"}}))
assert (code, reason) == (400, "INVALID_ARGUMENT")
assert all(part in message for part in ("workerType", "masterType", "wokerType")), message
assert status(jobs.get(name=f"{parent}/jobs/none"))[:2] == (404, "NOT_FOUND")
assert status(jobs.get(name="projects/other/jobs/first"))[:2] == (404, "NOT_FOUND")

wait("first", "RUNNING")
job = jobs.get(name=f"{parent}/jobs/first").execute()
patched = jobs.patch(name=f"{parent}/jobs/first", updateMask="labels", body={"labels": {"phase": "two"}, "etag": job["etag"]}).execute()
assert patched["labels"] == {"phase": "two"} and patched["etag"] != job["etag"]
stale = jobs.patch(name=f"{parent}/jobs/first", updateMask="labels", body={"labels": {}, "etag": job["etag"]})
assert status(stale)[:2] == (409, "ABORTED")
assert status(jobs.patch(name=f"{parent}/jobs/first", updateMask="state", body={}))[0] == 400

for number in range(5):
    body = {"jobId": f"short_{number}", "trainingInput": {"args": ["true"]}}
    jobs.create(parent=parent, body=body).execute()
    wait(f"short_{number}", "SUCCEEDED")

seen, request = [], jobs.list(parent=parent, pageSize=2, filter="jobId:short* AND state:SUCCEEDED")
pages = 0
while request is not None:
    answer = request.execute()
    seen += [job["jobId"] for job in answer["jobs"]]
    pages += 1
    request = jobs.list_next(request, answer)
assert seen == [f"short_{number}" for number in reversed(range(5))] and pages == 3, (seen, pages)
assert len(jobs.list(parent=parent).execute()["jobs"]) == 6
assert jobs.list(parent="projects/other").execute()["jobs"] == []
assert status(jobs.list(parent=parent, filter="nonsense"))[:2] == (400, "INVALID_ARGUMENT")

assert jobs.cancel(name=f"{parent}/jobs/first", body={}).execute() == {}
ended = wait("first", "CANCELLED")
assert ended["endTime"] >= ended["startTime"] >= ended["createTime"]
assert status(jobs.cancel(name=f"{parent}/jobs/first", body={}))[:2] == (400, "FAILED_PRECONDITION")

wrong = discovery.build(
    "ml", "v1", static_discovery=True, cache_discovery=False, client_options={"api_endpoint": address},
    credentials=google.oauth2.credentials.Credentials("wrong" * 10),
)
try:
    wrong.projects().jobs().list(parent=parent).execute()
    raise AssertionError("a wrong token was taken")
except (errors.HttpError, google.auth.exceptions.RefreshError):
    pass
print("ok")
