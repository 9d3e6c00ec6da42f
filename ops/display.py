"""What the launcher shows: progress of the start, and the processes' own lines with their names.

A bar a process on a terminal, plain lines elsewhere. No refresh thread: children must be forked by
a process that has none.
"""

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskProgressColumn, TextColumn
from rich.progress import TaskID as BarId
from rich.text import Text

from ops.events import Key, Role
from protocol.lifecycle import Stage
from protocol.logs import LogForm, json_line

STYLES = {Role.WORKER: "cyan", Role.SCHEDULER: "magenta", Role.GATEWAY: "green"}
WIDTH = max(len(role) for role in Role)


class Display:
    """Writes to one console. `close` ends the progress bars, and may be called again.

    With JSON lines from the processes, its own lines are objects too and there are no bars.
    """

    def __init__(self, console: Console, form: LogForm = LogForm.TEXT) -> None:
        self.console = console
        self._form = form
        self._bars: dict[Key, BarId] = {}
        self._stages: dict[Key, str] = {}
        self._progress: Progress | None = None
        if console.is_terminal and form is LogForm.TEXT:
            self._progress = Progress(
                SpinnerColumn(),
                TextColumn("{task.fields[role]:<9} {task.description}"),
                BarColumn(bar_width=30),
                TaskProgressColumn(),
                console=console,
                auto_refresh=False,
                transient=True,
            )
            self._progress.start()

    def stage(self, key: Key, role: Role, stage: Stage) -> None:
        """Show how far a start is."""
        begins = self._stages.get(key) != stage.name
        if begins:
            self.forget(key)
            self._stages[key] = stage.name
        if self._progress is None:
            if begins:
                self.line(role, stage.name)
            return
        if begins:
            total = stage.total or None
            self._bars[key] = self._progress.add_task(stage.name, role=role, total=total)
        self._progress.update(self._bars[key], completed=stage.done)
        self._progress.refresh()

    def forget(self, key: Key) -> None:
        """Its stage is over: the process is ready, has gone, or goes on with another stage."""
        self._stages.pop(key, None)
        if self._progress is not None and key in self._bars:
            self._progress.remove_task(self._bars.pop(key))
            self._progress.refresh()

    def line(self, role: Role, text: str) -> None:
        """Show a line of a process."""
        if self._form is LogForm.JSON:
            self._object(role, text)
            return
        self.console.print(
            Text(f"{role:<{WIDTH}} ", STYLES[role]).append(text, "default"), soft_wrap=True
        )

    def note(self, text: str) -> None:
        """Show a line of the launcher's own."""
        if self._form is LogForm.JSON:
            self._object("tandem", text)
            return
        self.console.print(
            Text("tandem".ljust(WIDTH + 1), "bold").append(text, "default"), soft_wrap=True
        )

    def _object(self, process: str, text: str) -> None:
        """Print a line that is an object as it is, any other as the message of one."""
        is_object = text.startswith("{") and text.endswith("}")
        line = text if is_object else json_line(process, "info", "ops.launch", text)
        self.console.out(line, highlight=False)

    def close(self) -> None:
        """End the progress bars."""
        if self._progress is not None:
            self._progress.stop()
            self._progress = None
