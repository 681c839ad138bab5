"""The order of ``rmqha promote`` to a slave that runs."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from rmqha.ha.slave.states import ReplicaState
from rmqha.kit.exitcodes import ExitCode
from rmqha.node.core import Phase, RoleChanger
from rmqha.node.interfaces import IProcess
from rmqha.node.opennode import OpenNode
from rmqha.node.plan import NodePlan
from rmqha.ops.control import OrderRefused
from rmqha.settings.settings import BrokerRole
from rmqha.store.epochs import note_name_servers
from rmqha.store.offline.promote import (
    UNFIT,
    NotPromotable,
    Promotion,
    check_disk,
    check_popped,
    plan_promotion,
    promotion_as_json,
)
from rmqha.store.opening import OpeningStopped


class PromotionOrder:
    """Makes a slave that runs a master."""

    def __init__(self, core: RoleChanger, process: IProcess) -> None:
        self._core = core
        self._process = process

    @property
    def _node(self) -> OpenNode:
        node = self._core.open_node
        assert isinstance(node, OpenNode), "the store is open while a node runs"
        return node

    async def carry_out(self, order: Mapping[str, Any]) -> dict[str, Any]:
        """Carry out an order of ``rmqha promote``. Raises OrderRefused, StoreError, OSError."""
        try:
            role, dry_run, force = BrokerRole(order["role"]), bool(order["dryRun"]), bool(order["force"])
            abandons_popped = bool(order.get("abandonPopped"))
            names = [str(address) for address in order.get("nameServers") or ()]
            plan = self._core.plan.as_master(role).registering_with(names)
        except (KeyError, ValueError, TypeError) as error:
            raise OrderRefused(
                ExitCode.USAGE, f"the order does not say which role, or which name servers: {error}"
            ) from error
        self._check_promotable(force)
        try:
            check_disk(self._core.plan.settings.store_path_root_dir)
        except NotPromotable as error:
            raise OrderRefused(error.code, str(error)) from error
        settings, before = self._core.plan.settings, self._node.state()
        if dry_run:
            planning = partial(plan_promotion, settings, role, before)
            restarts = tuple(sorted(self._node.store.restarts.found))  # the note on the disk may be older
            found: Promotion = await self._process.run_in_table_thread(planning)
            return self._answer(replace(found, restarts=restarts), plan)
        if not abandons_popped:
            checking = partial(check_popped, settings, role, before)
            try:
                await self._process.run_in_table_thread(checking)
            except NotPromotable as error:
                raise OrderRefused(error.code, str(error)) from error
            self._check_promotable(force)  # it took its time
        return await self._core.change(self._become_master(plan, names))

    def _check_promotable(self, force: bool) -> None:
        """Raises OrderRefused for a node that is a master, or whose master is alive, or whose log does not fit."""
        if self._core.phase is not Phase.RUNNING:
            raise OrderRefused(ExitCode.IN_USE, f"the node is {self._core.phase.value}")
        node = self._node
        if node.slave is None:
            raise OrderRefused(ExitCode.USAGE, "its node is a master already")
        state, verdict = node.slave.replica.state, node.verdict
        if verdict in UNFIT and not force:
            why = verdict if node.slave.reason is None else f"{verdict} ({node.slave.reason})"
            reason = f"it is {why}: promote another slave. --force promotes this one"
            raise OrderRefused(UNFIT[verdict], reason)
        if state is not ReplicaState.CONNECTING and not force:
            raise OrderRefused(
                ExitCode.IN_USE,
                f"it is {state.name}: its master at {node.master_address} is alive. Stop that one first; --force "
                "makes two masters",
            )

    @staticmethod
    def _answer(promotion: Promotion, plan: NodePlan) -> dict[str, Any]:
        names = [name for name, _ in plan.name_servers]
        return {**promotion_as_json(promotion), "nameServers": names, "foundByNobody": plan.is_found_by_nobody}

    async def _become_master(self, plan: NodePlan, names: list[str]) -> dict[str, Any]:
        """Become the master that the plan says, and note the name servers. Raises OrderRefused, StoreError, OSError."""
        try:
            promotion = await self._core.become_master(plan)
        except OpeningStopped as error:
            raise OrderRefused(ExitCode.IN_USE, f"{error}: it is still a slave's") from error
        if names:
            root = plan.settings.store_path_root_dir
            await self._process.run_in_table_thread(partial(note_name_servers, root, names))
        return self._answer(promotion, plan)
