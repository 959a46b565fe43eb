"""Workers that take a config too easily, or say too much of it."""

from __future__ import annotations

from typing import Any

from . import mutant
from .healthy import Call, Healthy, Json
from .leases import Leases
from .refusals import Refusal


class EchoesConfigs(Leases):
    """Answers a config as it came."""

    def validate_config(self, call: Call) -> Json:
        result = super().validate_config(call)
        return {**result, "config": call.params.get("config", {})}


@mutant("CONF-1/defaults")
class FillsInNothing(Healthy):
    """Answers a config without its defaults."""

    leases_class = EchoesConfigs


class LosesKeys(Leases):
    """Answers only what was not given."""

    def validate_config(self, call: Call) -> Json:
        result = super().validate_config(call)
        label = result.get("config", {}).get("label", "plain")
        return {**result, "config": {"label": label + "!"}}


@mutant("CONF-1/defaults")
class ChangesItsConfig(Healthy):
    """Answers a config that becomes another one when it is sent again."""

    leases_class = LosesKeys


class NamesBareKeys(Leases):
    """Names keys without the path."""

    def faults_of_config(self, config: Any) -> list[Json]:
        found = super().faults_of_config(config)
        return [{**issue, "field": issue["field"].removeprefix("config.")} for issue in found]


@mutant("CONF-1/issues", "CONF-2", "CONF-3")
class NamesKeysWithoutTheirPath(Healthy):
    """Names a wrong key by its bare name."""

    leases_class = NamesBareKeys


class ChecksNothing(Leases):
    """Acquires with whatever config."""

    def acquire_lease(self, call: Call) -> Json:
        call.params = {**call.params, "config": {}}
        return super().acquire_lease(call)


@mutant("CONF-2")
class AcquiresWithAnyConfig(Healthy):
    """Acquires with a config that it finds at fault."""

    leases_class = ChecksNothing


class NamesNoField(Leases):
    """Leaves the detail out."""

    def check_config(self, params: Json) -> None:
        if self.faults_of_config(params.get("config", {})):
            raise Refusal("ConfigInvalid", "the config has a fault")


@mutant("CONF-2")
class NamesNoKey(Healthy):
    """Refuses a config without the key in the detail."""

    leases_class = NamesNoField


class SaysInvalidParams(Leases):
    """Takes a fault of the config for one of the params."""

    def check_config(self, params: Json) -> None:
        for fault in self.faults_of_config(params.get("config", {})):
            raise Refusal("InvalidParams", fault["message"], detail={"field": fault["field"]})


@mutant("CONF-2")
class TakesConfigsForParams(Healthy):
    """Answers a wrong config with InvalidParams."""

    leases_class = SaysInvalidParams


class ChecksLate(Leases):
    """Looks at the config when the sandbox is there."""

    def acquire_lease(self, call: Call) -> Json:
        params, call.params = call.params, {**call.params, "config": {}}
        lease = super().acquire_lease(call)
        self.check_config(params)
        return lease


@mutant("CONF-2")
class ChecksAfterwards(Healthy):
    """Refuses a wrong config, and leaves the sandbox that it has made by then."""

    leases_class = ChecksLate


class TakesAnyKey(Leases):
    """Ignores keys that are not its own."""

    def faults_of_config(self, config: Any) -> list[Json]:
        return super().faults_of_config({"label": config.get("label", "")} if isinstance(config, dict) else config)


@mutant("CONF-3", "CONF-2")
class IgnoresUnknownKeys(Healthy):
    """Ignores keys that it does not know."""

    leases_class = TakesAnyKey


class ProbesForReal(Leases):
    """Makes a sandbox to see whether it can."""

    def probe(self, call: Call) -> Json:
        result = super().probe(call)
        call.params = {
            **call.params,
            "sandboxId": "spprobe" + f"{call.id:0>21}".translate(str.maketrans("0189", "abcd")),
        }
        self.acquire_lease(call)
        return result


@mutant("CONF-4")
class ProbesWithASandbox(Healthy):
    """Makes a sandbox at each probe and leaves it."""

    leases_class = ProbesForReal


class ShowsSecrets(Leases):
    """Answers a config with the secrets in it."""

    def validate_config(self, call: Call) -> Json:
        result = super().validate_config(call)
        secrets = call.params.get("secrets")
        return {**result, "config": {**result["config"], **secrets}} if secrets and "config" in result else result


@mutant("CONF-5")
class FillsInSecrets(Healthy):
    """Answers a config with the secrets filled in."""

    leases_class = ShowsSecrets


class ListsSecrets(Leases):
    """Makes its cursor of all that it got."""

    def list_leases(self, call: Call) -> Json:
        result = super().list_leases(call)
        return {**result, "credentials": call.params.get("secrets", {})}


@mutant("CONF-5")
class ListsWithSecrets(Healthy):
    """Answers a list with the credentials that it was made with."""

    leases_class = ListsSecrets
