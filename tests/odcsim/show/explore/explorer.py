"""The explorer's page without a browser: by its link, and each of its answers as the page itself asks for them."""

import json
from collections.abc import Mapping
from typing import Any

BASE = "http://127.0.0.1:8050"
UPDATE = "/_dash-update-component"


class Page:
    """Somebody who has come in."""

    def __init__(self, served: Any) -> None:
        self.client = served.server.app.test_client()
        self.client.get(f"/?token={served.door.token}", base_url=BASE)
        listed = self.client.get("/_dash-dependencies", base_url=BASE).get_json()
        self.callbacks = [one for one in listed if not one["clientside_function"]]

    def post(self, body: Any, **how: Any) -> Any:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.client.post(UPDATE, base_url=BASE, data=data, content_type="application/json", **how)

    def body(self, of: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """What the page sends to have the callback that fills `of`; `values` of what it listens to, by id."""
        [found] = [one for one in self.callbacks if of in one["output"]]
        inputs, state = ([_filled(one, values) for one in found[name]] for name in ("inputs", "state"))
        outputs = [dict(zip(("id", "property"), one.rsplit(".", 1), strict=True)) for one in _outputs(found["output"])]
        asked = {"output": found["output"], "outputs": outputs, "inputs": inputs, "state": state}
        if not found["output"].startswith(".."):
            asked["outputs"] = outputs[0]
        return asked | {"changedPropIds": [f"{inputs[0]['id']}.{inputs[0]['property']}"]}

    def ask(self, of: str, values: Mapping[str, Any]) -> Any:
        return self.post(self.body(of, values))


def _filled(one: Mapping[str, str], values: Mapping[str, Any]) -> dict[str, Any]:
    return {"id": one["id"], "property": one["property"], "value": values.get(one["id"])}


def _outputs(text: str) -> list[str]:
    return text.strip(".").split("...")


def told(reply: Any, name: str = "problem") -> str:
    """The line that the page shows: there, or beside a control."""
    shown = reply.get_json()["response"]
    every = [name] if name in shown else [of for of in shown if of.endswith(f"-{name}")]
    return "".join(str(shown[of].get("children", "")) for of in every)
