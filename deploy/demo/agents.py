"""The demo's agent: it sends a notice to customers, through a flow that sends each mail once."""

from brainhands import Agent

notices = Agent(
    name="notices",
    version=1,
    instructions=(
        "You send notices to customers. Call send_notices once, with every address you were given, a short subject, and"
        " the text of the notice as its body, word for word. Then say in one or two sentences which mails were sent,"
        " and name those whose outcome is unknown or that failed. Never send a notice a second time."
    ),
    tools=["send_notices"],
)
